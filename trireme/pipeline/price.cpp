#include "trireme/pipeline/price.h"

#include <algorithm>

#include "trireme/pipeline/checks.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/play.h"

namespace trireme::pipeline {

namespace {

double time_of(Act act, const StageTimes& times) {
  switch (act) {
    case Act::Forward: return times.forward;
    case Act::Backward: return times.backward;
    case Act::BackwardInput: return times.backward_input;
    case Act::BackwardWeight: return times.backward_weight;
    case Act::Update: return times.update;
    default: return 0;
  }
}

/// One clock per rank, which only computation advances. The result of an action is ready when the
/// action (or the pair that it is part of) ends; on another rank, one transfer later.
///
///     rank 0   [ F0 ][ F1 ]
///                   \ transfer
///     rank 1          [ F0 ]
class Clocks {
 public:
  Clocks(const Schedule& schedule, const StepTable& steps, const std::vector<StageTimes>& times)
      : schedule_(schedule), steps_(steps), times_(times), clocks_(schedule.programs.size(), 0) {
    for (const Program& program : schedule.programs) {
      timeline_.ranks.emplace_back(program.size());
      ready_.emplace_back(program.size(), 0.0);
    }
  }

  void take(const JoinedActions& joined) {
    const auto rank = static_cast<std::size_t>(joined.rank);
    const Action* first = schedule_.programs[rank].data() + joined.step;
    if (is_transfer(first->act)) return transfer(joined, *first);
    double now = clocks_[rank];
    for (const Action* action = first; action < first + joined.count; ++action)
      now = std::max(now, inputs_ready(*action));
    for (int i = 0; i < joined.count; ++i) {
      const double begin = now;
      now += time_of(first[i].act, times_of(first[i].stage));
      span(joined, i) = {first[i], begin, now};
    }
    for (int i = 0; i < joined.count; ++i)
      ready(joined, i) = now;  // a pair gives its results at its end
    clocks_[rank] = now;
  }

  Timeline finish() { return std::move(timeline_); }

 private:
  const StageTimes& times_of(int stage) const {
    return times_.size() == 1 ? times_.front() : times_[static_cast<std::size_t>(stage)];
  }
  Span& span(const JoinedActions& joined, int i) {
    return timeline_
        .ranks[static_cast<std::size_t>(joined.rank)][static_cast<std::size_t>(joined.step + i)];
  }
  double& ready(const JoinedActions& joined, int i) {
    return ready_[static_cast<std::size_t>(joined.rank)][static_cast<std::size_t>(joined.step + i)];
  }
  double ready_at(const Action& done) const {
    return ready_[static_cast<std::size_t>(schedule_.rank_of(done.stage))]
                 [static_cast<std::size_t>(steps_.step(done))];
  }

  double inputs_ready(const Action& action) const {
    double when = 0;
    for (const Action& wanted : dependencies(action, schedule_, steps_)) {
      const bool far = schedule_.rank_of(wanted.stage) != schedule_.rank_of(action.stage);
      when = std::max(when, ready_at(wanted) + (far ? times_of(wanted.stage).transfer : 0));
    }
    return when;
  }

  /// A send begins at the rank's current time and does not delay the rank; its receive has the same
  /// times at the other end.
  void transfer(const JoinedActions& joined, const Action& action) {
    double begin = clocks_[static_cast<std::size_t>(joined.rank)];
    double end = begin + times_of(action.stage).transfer;
    if (is_receive(action.act)) {
      const Action send = *dependencies(action, schedule_, steps_).begin();
      end = ready_at(send);
      begin = end - times_of(send.stage).transfer;
    }
    span(joined, 0) = {action, begin, end};
    ready(joined, 0) = end;
  }

  const Schedule& schedule_;
  const StepTable& steps_;
  const std::vector<StageTimes>& times_;
  std::vector<double> clocks_;
  std::vector<std::vector<double>> ready_;
  Timeline timeline_;
};

}  // namespace

double Timeline::end() const {
  double last = 0;
  for (const auto& spans : ranks)
    for (const Span& span : spans) last = std::max(last, span.end);
  return last;
}

double Timeline::busy(int rank) const {
  double total = 0;
  for (const Span& span : ranks[static_cast<std::size_t>(rank)])
    if (is_compute(span.action.act)) total += span.end - span.begin;
  return total;
}

double Timeline::bubble() const {
  double total = 0;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) total += busy(rank);
  const double all = end() * static_cast<double>(ranks.size());
  return all > 0 ? 1 - total / all : 0;
}

Timeline price(const Schedule& schedule, const std::vector<StageTimes>& times) {
  core::check(
      times.size() == 1 || times.size() == static_cast<std::size_t>(schedule.stages()),
      "price: times of {} stages for a schedule of {} stages; give one for all, or one for each",
      times.size(), schedule.stages());
  verify(schedule);
  const StepTable steps = check_actions(schedule);
  Clocks clocks(schedule, steps, times);
  play(schedule, steps, [&](const JoinedActions& joined) { clocks.take(joined); });
  return clocks.finish();
}

}  // namespace trireme::pipeline
