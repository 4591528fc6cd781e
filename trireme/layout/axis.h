#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace trireme {

/// A way of cutting the mesh.
enum class Axis : uint8_t { Pipe, Replica, Shard, Context, Expert, Tensor };

/// "pipe", "replica" ...: the words of configurations and messages.
constexpr std::string_view to_string(Axis axis) {
  constexpr std::array<std::string_view, 6> kNames = {"pipe",    "replica", "shard",
                                                      "context", "expert",  "tensor"};
  return kNames[static_cast<std::size_t>(axis)];
}

}  // namespace trireme
