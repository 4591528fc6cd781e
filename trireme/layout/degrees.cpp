#include "trireme/layout/degrees.h"

#include <limits>

#include "trireme/core/error.h"
#include "trireme/layout/axis_field.h"

namespace trireme {

namespace {

/// The axes whose degrees multiply to the world, slowest varying first.
constexpr Axis kWorldAxes[] = {Axis::Pipe, Axis::Replica, Axis::Shard, Axis::Context, Axis::Tensor};

template <class Axes>
int product(const Degrees& degrees, const Axes& axes) {
  int result = 1;
  for (const Axis axis : axes)
    if (__builtin_mul_overflow(result, degrees.of(axis), &result))
      throw MisuseError(fmt::format("Mesh: {} is more than {} ranks", to_string(degrees),
                                    std::numeric_limits<int>::max()));
  return result;
}

}  // namespace

int Degrees::of(Axis axis) const {
  return field_of(*this, axis);
}

int Degrees::world() const {
  return product(*this, kWorldAxes);
}

int Degrees::data() const {
  return product(*this, kDataAxes);
}

int Degrees::samples() const {
  return product(*this, kSampleAxes);
}

namespace {

/// "pipe 2 x tensor 3": the axes whose degrees multiply to the world; empty for one rank.
std::string text_of_world(const Degrees& degrees) {
  std::string text;
  for (const Axis axis : kWorldAxes) {
    if (degrees.of(axis) == 1) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", to_string(axis), degrees.of(axis));
  }
  return text;
}

}  // namespace

void check(const Degrees& degrees, int world_size) {
  for (const Axis axis :
       {Axis::Pipe, Axis::Replica, Axis::Shard, Axis::Context, Axis::Tensor, Axis::Expert}) {
    core::check(degrees.of(axis) >= 1, "Mesh: {} is {}, but a degree is at least 1",
                to_string(axis), degrees.of(axis));
  }
  const int ranks = degrees.world();
  const std::string sum = ranks == 1 ? "1" : fmt::format("{} = {}", text_of_world(degrees), ranks);
  core::check(ranks == world_size, "Mesh: {}, but the world has {} rank{}", sum, world_size,
              world_size == 1 ? "" : "s");
  core::check(degrees.data() % degrees.expert == 0,
              "Mesh: expert {} does not divide replica {} x shard {} x context {} = {}",
              degrees.expert, degrees.replica, degrees.shard, degrees.context, degrees.data());
}

std::string to_string(const Degrees& degrees) {
  const std::string text = text_of_world(degrees);
  if (degrees.expert > 1) return fmt::format("{}, expert {}", text, degrees.expert);
  return text.empty() ? "1" : text;
}

}  // namespace trireme
