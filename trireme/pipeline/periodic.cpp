#include "trireme/pipeline/periodic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "trireme/pipeline/checks.h"
#include "trireme/pipeline/families.h"
#include "trireme/pipeline/passes.h"

namespace trireme::pipeline {

namespace {

/// Adds the backward of a micro-batch that is `number` after the first one of the newest step
/// (before it, if negative), and the update that the last micro-batch of a step is followed by.
void add_backward(AgedProgram& program, int stage, int number, int micros) {
  const int age = number >= 0 ? 0 : (-number + micros - 1) / micros;
  const int micro = number + age * micros;
  program.push_back({{stage, Act::Backward, micro}, age});
  if (micro + 1 == micros) program.push_back({{stage, Act::Update}, age});
}

/// How many updates a stage is late if it always uses its newest weights: when a step begins, the
/// micro-batches of all ranks behind it are in flight.
int natural_delay(int stage, Shape shape) {
  const int behind = shape.ranks - 1 - stage;
  return (behind + shape.micros - 1) / shape.micros;
}

int oldest(const std::vector<AgedProgram>& programs) {
  int age = 0;
  for (const AgedProgram& program : programs)
    for (const AgedAction& one : program) age = std::max(age, one.age);
  return age;
}

AgedProgram younger_than(const AgedProgram& program, int age) {
  AgedProgram some;
  std::ranges::copy_if(program, std::back_inserter(some),
                       [&](const AgedAction& one) { return one.age < age; });
  return some;
}

/// A rank that goes through steps and counts the versions that it keeps.
class VersionWalk {
 public:
  VersionWalk(const PeriodicSchedule& schedule, int rank) : schedule_(schedule), rank_(rank) {}

  void run(int steps) {
    for (int step = 1; step <= steps; ++step) take(schedule_.step(rank_, step - 1), step);
    take(schedule_.epilogue(rank_, steps), steps);
  }
  int most() const { return most_; }

 private:
  void take(const AgedProgram& program, int newest) {
    for (const auto& [action, age] : program) {
      const int step = newest - age, delay = schedule_.delay_of(action.stage);
      if (action.act == Act::Update) {
        ++updates_;
        first_kept_ = version_of(step + 1, delay);
      } else if (version_of(step, delay) > updates_) {
        throw ScheduleError(fmt::format(
            "schedule '{}': rank {} does {} of step {} with the weights after update {}, but then "
            "it has made only {} updates",
            schedule_.name, rank_, to_text(action), step, version_of(step, delay), updates_));
      } else if (version_of(step, delay) < first_kept_) {
        throw ScheduleError(fmt::format(
            "schedule '{}': rank {} does {} of step {} with the weights after update {}, of which "
            "it keeps only those after update {} and later",
            schedule_.name, rank_, to_text(action), step, version_of(step, delay), first_kept_));
      }
      most_ = std::max(most_, static_cast<int>(updates_ - first_kept_) + 1);
    }
  }

  const PeriodicSchedule& schedule_;
  int rank_, most_ = 1;
  int64_t updates_ = 0, first_kept_ = 0;
};

/// Enough steps to fill the pipe, to run it full, and to have seen every age.
int enough_steps(const PeriodicSchedule& schedule) {
  const int most = *std::ranges::max_element(schedule.delays);
  return 2 * (schedule.depth() + most) + 3;
}

}  // namespace

int PeriodicSchedule::depth() const {
  return oldest(period);
}

AgedProgram PeriodicSchedule::step(int rank, int before) const {
  return younger_than(period[static_cast<std::size_t>(rank)], before + 1);
}

AgedProgram PeriodicSchedule::epilogue(int rank, int begun) const {
  return younger_than(drain[static_cast<std::size_t>(rank)], begun);
}

// PipeDream (Narayanan et al. 2019) and PipeDream-2BW (2021) have one order: rank r is P - 1 - r
// micro-batches ahead with its forwards, and then goes on with one forward and one backward. They
// differ in the version that a step uses. M = 1, P = 3, where Ft/v is the forward of step t at
// W(v):
//
//     pipedream   rank 0  F1/0 F2/0 F3/0 B1 U F4/1 B2 U F5/2 ...     delay 2, three versions
//                 rank 1  F1/0 F2/0 B1 U F3/1 B2 U F4/2 ...          delay 1, two versions
//                 rank 2  F1/0 B1 U F2/1 B2 U F3/2 ...               delay 0
//     vertical    every rank as rank 0: delay 2, three versions
//     2bw         M >= P: at most two steps are in flight, so delay 1 suffices for all stages
PeriodicSchedule make_periodic(std::string_view name, Shape shape, VersionSync sync) {
  const Schedule drained = make(name, shape);  // checks the name and the shape
  if (is_synchronous(name))
    throw ScheduleError(
        fmt::format("{} drains the pipe in every step; pipedream and pipedream-2bw do not", name));
  const bool doubled = name == "pipedream-2bw";
  if (doubled && shape.micros < shape.ranks)
    throw ScheduleError(fmt::format(
        "pipedream-2bw: {} micro-batches a step on {} ranks: it needs at least {}, because with "
        "fewer more than two versions of the weights are in use",
        shape.micros, shape.ranks, shape.ranks));
  PeriodicSchedule schedule{.name = std::string(name),
                            .micros = shape.micros,
                            .placement = drained.placement,
                            .period = {},
                            .drain = {},
                            .delays = {}};
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const int ahead = shape.ranks - 1 - rank;
    AgedProgram period, drain;
    for (int micro = 0; micro < shape.micros; ++micro) {
      period.push_back({{rank, Act::Forward, micro}, 0});
      add_backward(period, rank, micro - ahead, shape.micros);
    }
    for (int number = shape.micros - ahead; number < shape.micros; ++number)
      add_backward(drain, rank, number, shape.micros);
    schedule.period.push_back(std::move(period));
    schedule.drain.push_back(std::move(drain));
    schedule.delays.push_back(
        doubled ? 1 : natural_delay(sync == VersionSync::Vertical ? 0 : rank, shape));
  }
  return schedule;
}

Schedule unrolled(const PeriodicSchedule& schedule, int steps) {
  constexpr int64_t kMostWork = 1 << 24;
  if (static_cast<int64_t>(steps) * schedule.micros > kMostWork / schedule.ranks())
    throw ScheduleError(
        fmt::format("{}: {} ranks x {} steps x {} micro-batches are more than the limit of {}",
                    schedule.name, schedule.ranks(), steps, schedule.micros, kMostWork));
  Schedule result{schedule.name, steps * schedule.micros, schedule.placement, {}};
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    Program& program = result.programs.emplace_back();
    const auto add = [&](const AgedProgram& some, int newest) {
      for (auto [action, age] : some) {
        if (has_micro(action.act)) action.micro += (newest - age) * schedule.micros;
        program.push_back(action);
      }
    };
    for (int step = 0; step < steps; ++step) add(schedule.step(rank, step), step);
    add(schedule.epilogue(rank, steps), steps - 1);
  }
  return result;
}

void verify(const PeriodicSchedule& schedule) {
  peak_versions(schedule);
  verify(with_transfers(unrolled(schedule, enough_steps(schedule))));
}

std::vector<int> peak_versions(const PeriodicSchedule& schedule) {
  std::vector<int> peaks;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    VersionWalk walk(schedule, rank);
    walk.run(enough_steps(schedule));
    peaks.push_back(walk.most());
  }
  return peaks;
}

// The first updates come while the pipe fills, the last while it drains; between them is the steady
// state:
//
//     rank 0   F F B U F B U F B U F B U .. B U
//                          |-----------|           steps / 2 periods
double price_period(const PeriodicSchedule& schedule, const std::vector<StageTimes>& times) {
  const int drained = schedule.depth(), counted = 2 * schedule.ranks() + 6;
  const Timeline timeline = price(unrolled(schedule, 2 * counted + drained), times);
  std::vector<double> updates;
  for (const Span& span : timeline.ranks.front())
    if (span.action.act == Act::Update) updates.push_back(span.end);
  return (updates[static_cast<std::size_t>(2 * counted) - 1] -
          updates[static_cast<std::size_t>(counted) - 1]) /
         counted;
}

}  // namespace trireme::pipeline
