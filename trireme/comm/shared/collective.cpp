#include "trireme/comm/shared/collective.h"

#include <cstring>

#include "trireme/comm/kernels.h"

namespace trireme::comm {

SharedCollective::SharedCollective(SharedGroup& group, LoweredOp op, uint64_t op_number,
                                   uint64_t fingerprint)
    : group_(group), op_(std::move(op)), fingerprint_(fingerprint) {
  number = op_number;
  info = op_.info;
}

SharedCollective::~SharedCollective() {
  if (program_) group_.world().engine().locked([&] { program_.reset(); });
}

Task::Step SharedCollective::step() {
  if (phase_ == Phase::Run) [[likely]]
    return program_ ? program_->step() : run();
  if (phase_ == Phase::Enter) {
    // Even and odd collectives use two sets of slots and arrivals in turn. This set is free when
    // all ranks have arrived at the previous collective: they have finished reading the one before
    // it.
    if (number > 1 && !group_.all_at_least(kArrived, number - 1))
      return wait_for(kArrived, number - 1);
    group_.arrive(number, fingerprint_, op_.info, show());
    phase_ = Phase::Arrive;
  }
  if (!group_.all_at_least(kArrived, number)) return wait_for(kArrived, number);
  if (!same_operation()) return Step::Stuck;
  waiting_ = false;
  phase_ = Phase::Run;
  return run();
}

bool SharedCollective::same_operation() {
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (group_.arrival(number, rank).fingerprint == fingerprint_) continue;
    World& world = group_.world();
    if (!world.failed())
      world.report_mismatch({group_.lane().members[static_cast<std::size_t>(rank)], op_.info,
                             group_.info(number, rank)});
    return false;
  }
  return true;
}

Task::Step SharedCollective::wait_for(Channel channel, uint64_t value) {
  waiting_on_ = channel;
  waiting_for_ = value;
  waiting_ = true;
  return Step::Stuck;
}

Task::Step SharedCollective::run_program() {
  program_ = std::make_unique<ProgramRun>(
      op_, make_program(op_, pick(op_, group_.size()), group_.rank(), group_.size()),
      group_.world().messenger(), group_.lane(), number, fingerprint_);
  waiting_ = false;
  return program_->step() == Step::Done ? Step::Done : Step::Moved;
}

WakeCondition SharedCollective::wake_condition() const {
  if (!waiting_) return {};
  return {group_.lane().id, waiting_on_, waiting_for_};
}

std::vector<int> SharedCollective::missing() const {
  if (program_) return program_->missing();
  return group_.below(waiting_on_, waiting_for_);
}

Segments::Location SharedCollective::locate(const void* data, int64_t bytes) const {
  return group_.world().segments()->locate(data, bytes, group_.lane().members);
}

Segments::Location SharedCollective::put_in_slot(const void* data, int64_t bytes) {
  std::byte* to = bytes <= static_cast<int64_t>(Arrival::kInlineBytes)
                      ? group_.arrival(number, group_.rank()).inline_data
                      : group_.slot(number, group_.rank());
  if (bytes > 0) std::memcpy(to, data, static_cast<std::size_t>(bytes));
  // The offset tells readers, who may not know the size, whether the data is inline or in the slot.
  return {kInSlot, bytes <= static_cast<int64_t>(Arrival::kInlineBytes)};
}

const std::byte* SharedCollective::shown(int of) const {
  const Arrival& arrival = group_.arrival(number, of);
  if (arrival.segment == kInSlot)
    return arrival.offset ? arrival.inline_data : group_.slot(number, of);
  return group_.world().segments()->at({arrival.segment, arrival.offset});
}

bool SharedCollective::all_in_slots() const {
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (group_.arrival(number, rank).segment != kInSlot) return false;
  }
  return true;
}

bool SharedCollective::any_staged() const {
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (group_.arrival(number, rank).segment == kStaged) return true;
  }
  return false;
}

}  // namespace trireme::comm
