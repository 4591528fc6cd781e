#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace trireme {

/// A way of cutting the mesh.
enum class Axis : uint8_t { Pipe, Replica, Shard, Context, Expert, Tensor };

/// The axes whose ranks see different samples or tokens with one model, and those among which the
/// samples of a batch are dealt.
inline constexpr std::array kDataAxes = {Axis::Replica, Axis::Shard, Axis::Context};
inline constexpr std::array kSampleAxes = {Axis::Replica, Axis::Shard};

/// "pipe", "replica" ...: the words of configurations and messages.
constexpr std::string_view to_string(Axis axis) {
  constexpr std::array<std::string_view, 6> kNames = {"pipe",    "replica", "shard",
                                                      "context", "expert",  "tensor"};
  return kNames[static_cast<std::size_t>(axis)];
}

}  // namespace trireme
