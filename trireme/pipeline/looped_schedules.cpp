#include <algorithm>
#include <ranges>

#include "trireme/pipeline/families.h"

namespace trireme::pipeline {

namespace {

/// Micro-batches go through the ranks in groups: a group passes all stages of a rank before the
/// next group. Groups of P keep every rank busy; a remainder makes some groups larger.
std::vector<int> group_sizes(Shape shape) {
  const int groups = std::max(1, shape.micros / shape.ranks);
  std::vector<int> sizes(static_cast<std::size_t>(groups), shape.micros / groups);
  for (int i = 0; i < shape.micros % groups; ++i) ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

/// The forwards, or the backwards, of a rank in their order: by group, by stage (backwards from the
/// last), by micro-batch.
Program rounds(const std::vector<int>& groups, std::vector<int> stages, Act act) {
  if (act != Act::Forward) std::ranges::reverse(stages);
  Program program;
  int first = 0;
  for (const int size : groups) {
    for (const int stage : stages)
      for (int micro = first; micro < first + size; ++micro) program.push_back({stage, act, micro});
    first += size;
  }
  return program;
}

}  // namespace

// Interleaved 1F1B (Narayanan et al. 2021, as in Megatron-LM): several stages per rank, so that the
// pipe fills with work that is V times smaller; the bubble shrinks by V. Two stages
// per rank, P = 2, M = 4; stages 0 and 2 are on rank 0:
//
//     0F0 0F1 2F0 2F1 0F2 ... 2B0---- 0F3 2B1---- 2F2 0B0---- 2F3 0B1---- ... 2B2---- ... 2B3----
//     ...
//     ... 1F0 1F1 3F0 3B0---- 3F1 3B1---- 1F2 1B0---- 1F3 1B1---- 3F2 3B2---- 3F3 3B3---- 1B2----
//     ...
//
// Before its first backward a rank has run all of its stages but the last on one group, and two
// more forwards for every rank behind it; with one stage per rank (plain 1F1B) one more forward.
Schedule make_interleaved(Shape shape) {
  Schedule schedule = in_a_loop(shape);
  const std::vector<int> groups = group_sizes(shape);
  const int stages = shape.stages_per_rank, ahead = stages > 1 ? 2 : 1;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const Program forwards = rounds(groups, schedule.stages_of(rank), Act::Forward);
    const Program backwards = rounds(groups, schedule.stages_of(rank), Act::Backward);
    const auto warmup = std::min(
        static_cast<std::size_t>((stages - 1) * groups.front() + ahead * (shape.ranks - 1 - rank)),
        forwards.size());
    Program& program = schedule.programs[static_cast<std::size_t>(rank)];
    program.assign(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(warmup));
    for (std::size_t i = 0; i < backwards.size(); ++i) {
      if (warmup + i < forwards.size()) program.push_back(forwards[warmup + i]);
      program.push_back(backwards[i]);
    }
  }
  return schedule;
}

// Breadth-first (Lamy-Poirier 2022): a stage runs all micro-batches before the next stage of the
// rank does, so that sharded weights are gathered once per stage and pass. P = 2, V = 2, M = 2:
//
//     rank 0  0F0 0F1 2F0 2F1 ........... 2B1---- 2B0---- 0B1---- 0B0----
//     rank 1  ... 1F0 1F1 3F0 3F1 3B1---- 3B0---- 1B1---- 1B0---- ........
Schedule make_looped_bfs(Shape shape) {
  Schedule schedule = in_a_loop(shape);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    Program& program = schedule.programs[static_cast<std::size_t>(rank)];
    for (const int stage : schedule.stages_of(rank))
      for (int micro = 0; micro < shape.micros; ++micro)
        program.push_back({stage, Act::Forward, micro});
    for (const Action& forward : std::views::reverse(Program(program)))
      program.push_back({forward.stage, Act::Backward, forward.micro});
  }
  return schedule;
}

}  // namespace trireme::pipeline
