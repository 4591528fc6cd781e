#include <utility>

#include "trireme/core/error.h"
#include "trireme/ps/manager.h"

// When the manager orders a snapshot, and what becomes of it:
//
//   none --order--> ordered --every part of every range is there--> complete
//                     |  \-- a server that should save dies: ordered again
//                     \-- no part comes for `save_within`: given up
//
// Files are removed only when the log says why: a manager that dies in between finds what its log
// says. Those of an order that is void are removed then, and so are old snapshots.

namespace trireme::ps {

namespace {

constexpr Time kTryAgain = std::chrono::seconds(2);  ///< what the disk refused

}  // namespace

bool Manager::wants_snapshot() const {
  if (view_.snapshot.snapshot != 0 || !are_dealt()) return false;
  if (books_.all_done()) return wants_last_ && !books_.snapshot_has_all();
  const uint64_t steps = job_.data.snapshot_steps;
  if (steps > 0 && !job_.in_lanes())
    return books_.steps_done() / steps > books_.snapshot().step / steps;
  const Time every = job_.timing.snapshot_every;
  return every != Time::zero() && environment_.now() - ordered_at_ >= every;
}

/// Lanes: before work of the clocks [begin, end) is handed out, the snapshot that is due after one
/// of them must be ordered, because later no range could stop there. While another one is being
/// saved, the work waits; but not that of a worker which others may have to wait for.
Manager::Handing Manager::order_before(Clock begin, Clock end) {
  const uint64_t steps = job_.data.snapshot_steps;
  if (steps == 0) return Handing::Free;
  const Clock due = end / steps * steps;
  const bool is_last = due == books_.end_clock() && wants_last_;
  if (due <= begin || due <= books_.snapshot().clock || is_last) return Handing::Free;
  if (view_.snapshot.snapshot != 0) {
    const bool all_work = view_.workers.size() == job_.workers;
    return view_.snapshot.clock >= due || !all_work ? Handing::Free : Handing::MustWait;
  }
  order(due);
  return Handing::Free;
}

/// In lanes at the clock that nobody has been given yet. One whose last clock comes is left to the
/// end of the job.
void Manager::order_snapshot() {
  if (!wants_snapshot()) return;
  const Clock clock = job_.in_lanes() ? books_.latest_clock() : 0;
  ordered_at_ = environment_.now();
  if (job_.in_lanes() && !books_.all_done() && books_.all_given()) return;
  order(clock);
}

/// Without a place to write it, there is no order: it is tried again.
void Manager::order(Clock clock) {
  if (environment_.now() < order_again_at_) return;
  const SnapshotOrder next{.snapshot = books_.newest_order() + 1,
                           .clock = clock,
                           .step = job_.in_lanes() ? clock : books_.steps_done()};
  try {
    environment_.begin(next);
  } catch (const CheckpointError& error) {
    order_again_at_ = environment_.now() + kTryAgain;
    return environment_.note(
        fmt::format("manager: cannot begin the snapshot of step {}: {}; trying again", next.step,
                    error.what()));
  }
  snapshot_parts_.clear();
  snapshot_moved_at_ = environment_.now();
  abandon_snapshot();
  decide(SnapshotOrdered{next});
}

/// A disk that stays full must not stop training for ever; servers say what they cannot write. Only
/// the last snapshot is what the job was for.
void Manager::give_up_snapshot() {
  const bool is_stuck = view_.snapshot.snapshot != 0 &&
                        environment_.now() - snapshot_moved_at_ > job_.timing.save_within;
  if (!is_stuck) return;
  const std::string what =
      fmt::format("the snapshot of step {} made no progress for {} s", view_.snapshot.step,
                  job_.timing.save_within.count() / 1000000);
  if (books_.all_done() && wants_last_)
    throw CheckpointError(what + ": all work is done, but not saved");
  environment_.note(fmt::format("manager: {}; training goes on without it", what));
  abandon_snapshot();
  decide(SnapshotGivenUp{});
}

/// To be called before the decision which makes the open order void.
void Manager::abandon_snapshot() {
  if (view_.snapshot.snapshot != 0) abandoned_.push_back(view_.snapshot);
}

/// Another order of the same step has begun its folder anew.
void Manager::tidy_snapshots() {
  const SnapshotOrder& open = view_.snapshot;
  try {
    for (const SnapshotOrder& order : std::exchange(abandoned_, {}))
      if (open.snapshot == 0 || open.step != order.step) environment_.abandon(order);
    if (completed_) environment_.prune(*std::exchange(completed_, {}));
  } catch (const CheckpointError& error) {
    environment_.note(
        fmt::format("manager: cannot remove an old snapshot: {}; it stays", error.what()));
  }
}

void Manager::order_again() {
  order(job_.in_lanes() ? books_.latest_clock() : 0);
  if (!books_.order_is_lost())
    environment_.note("manager: a server that was to save its part of a snapshot is gone; again");
}

void Manager::on_snapshot_done(const SnapshotDone& done) {
  if (done.snapshot != view_.snapshot.snapshot || done.snapshot == 0) return;
  if (done.table >= job_.tables.size() || done.range >= job_.ranges) return count("bad request");
  if (snapshot_parts_.try_emplace({done.table, done.range}).second)
    snapshot_moved_at_ = environment_.now();
  snapshot_parts_[{done.table, done.range}] = done.contents;
  if (snapshot_parts_.size() < job_.tables.size() * job_.ranges) return;
  if (environment_.now() < complete_again_at_) return;
  std::vector<std::string> contents;
  for (const auto& [part, text] : snapshot_parts_) contents.push_back(text);
  try {
    environment_.complete(view_.snapshot, contents);
  } catch (const CheckpointError& error) {  // servers repeat what they said: it is tried again
    complete_again_at_ = environment_.now() + kTryAgain;
    environment_.note(
        fmt::format("manager: cannot complete the snapshot of step {}: {}; trying again",
                    view_.snapshot.step, error.what()));
    return;
  }
  completed_ = view_.snapshot;
  decide(SnapshotComplete{done.snapshot});
  snapshot_parts_.clear();
}

bool Manager::is_finished() const {
  return books_.all_done() && (!wants_last_ || books_.snapshot_has_all());
}

}  // namespace trireme::ps
