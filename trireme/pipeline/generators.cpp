#include "trireme/pipeline/generators.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "trireme/pipeline/families.h"

namespace trireme::pipeline {

namespace {

enum class Stages { One, Two, Any };  // per rank
enum class Weights { Synchronous, Asynchronous };

struct Generator {
  std::string_view name;
  Schedule (*make)(Shape);
  Stages stages;
  Weights weights;
};

constexpr std::array kGenerators = {
    Generator{"gpipe", make_gpipe, Stages::One, Weights::Synchronous},
    Generator{"1f1b", make_1f1b, Stages::One, Weights::Synchronous},
    Generator{"interleaved", make_interleaved, Stages::Any, Weights::Synchronous},
    Generator{"looped-bfs", make_looped_bfs, Stages::Any, Weights::Synchronous},
    Generator{"zb-h1", make_zb_h1, Stages::One, Weights::Synchronous},
    Generator{"zb-v", make_zb_v, Stages::Two, Weights::Synchronous},
    Generator{"dualpipe-v", make_dualpipe_v, Stages::Two, Weights::Synchronous},
    Generator{"pipedream", make_pipedream, Stages::One, Weights::Asynchronous},
    Generator{"pipedream-2bw", make_pipedream_2bw, Stages::One, Weights::Asynchronous},
};

const Generator& generator_of(std::string_view name) {
  const auto entry = std::ranges::find(kGenerators, name, &Generator::name);
  if (entry == kGenerators.end())
    throw ScheduleError(
        fmt::format("unknown schedule '{}'; use one of {}", name, fmt::join(names(), ", ")));
  return *entry;
}

void check_shape(std::string_view name, Shape shape) {
  const auto& [ranks, micros, stages] = shape;
  if (ranks < 1 || micros < 1 || stages < 1)
    throw ScheduleError(fmt::format(
        "{}: {} ranks, {} micro-batches and {} stages per rank: each must be at least 1", name,
        ranks, micros, stages));
  constexpr int64_t kMostWork = 1 << 24;
  if (ranks > kMostWork || static_cast<int64_t>(ranks) * stages > kMostWork / micros)
    throw ScheduleError(
        fmt::format("{}: {} ranks x {} stages x {} micro-batches are more than the limit of {}",
                    name, ranks, stages, micros, kMostWork));
}

Schedule placed(Shape shape, int (*rank_of)(int stage, int ranks)) {
  Schedule schedule;
  schedule.micros = shape.micros;
  schedule.programs.resize(static_cast<std::size_t>(shape.ranks));
  for (int stage = 0; stage < shape.ranks * shape.stages_per_rank; ++stage)
    schedule.placement.push_back(rank_of(stage, shape.ranks));
  return schedule;
}

}  // namespace

Schedule in_a_loop(Shape shape) {
  return placed(shape, [](int stage, int ranks) { return stage % ranks; });
}

Schedule in_a_v(Shape shape) {
  return placed(shape,
                [](int stage, int ranks) { return stage < ranks ? stage : 2 * ranks - 1 - stage; });
}

int warm_up(Program& program, int rank, Shape shape) {
  const int forwards = std::min(shape.ranks - rank - 1, shape.micros);
  for (int micro = 0; micro < forwards; ++micro) program.push_back({rank, Act::Forward, micro});
  return forwards;
}

Schedule make(std::string_view name, Shape shape) {
  const Generator& entry = generator_of(name);
  check_shape(name, shape);
  shape.stages_per_rank = stages_per_rank(name, shape.stages_per_rank);
  Schedule schedule = entry.make(shape);
  schedule.name = name;
  return schedule;
}

std::vector<std::string_view> names() {
  std::vector<std::string_view> all;
  for (const Generator& entry : kGenerators) all.push_back(entry.name);
  return all;
}

bool is_synchronous(std::string_view name) {
  return generator_of(name).weights == Weights::Synchronous;
}

int stages_per_rank(std::string_view name, int wanted) {
  const Stages stages = generator_of(name).stages;
  if (stages == Stages::One && wanted != 1)
    throw ScheduleError(fmt::format(
        "{} has 1 stage per rank, not {}; interleaved and looped-bfs can have more", name, wanted));
  if (stages == Stages::Two && wanted != 1 && wanted != 2)
    throw ScheduleError(fmt::format(
        "{} has 2 stages per rank, not {}; leave the number out, or use 2", name, wanted));
  return stages == Stages::Two ? 2 : wanted;
}

}  // namespace trireme::pipeline
