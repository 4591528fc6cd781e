#pragma once

#include <cstdint>
#include <string>

#include "trireme/layout/axis.h"

namespace trireme {

/// How many ranks lie along each axis. Pipe x replica x shard x context x tensor is the world;
/// expert re-uses ranks: it divides replica x shard x context.
struct Degrees {
  int pipe = 1, replica = 1, shard = 1, context = 1, tensor = 1, expert = 1;

  int of(Axis axis) const;

  /// The number of ranks. Throws MisuseError where it does not fit an int.
  int world() const;

  /// Replica x shard x context: the ranks that see different samples or tokens with one model.
  int data() const;

  /// Replica x shard: the ranks among which the samples of a batch are dealt.
  int samples() const;

  bool operator==(const Degrees&) const = default;
};

/// Throws MisuseError, with the numbers, unless the degrees make a world of `world_size` ranks.
void check(const Degrees& degrees, int world_size);

/// "pipe 2 x tensor 3": the degrees that are not 1, or "1".
std::string to_string(const Degrees& degrees);

}  // namespace trireme
