#pragma once

#include <memory>
#include <vector>

#include "trireme/comm/op.h"
#include "trireme/comm/program_run.h"
#include "trireme/comm/shared/group.h"
#include "trireme/comm/task.h"

namespace trireme::comm {

/// A collective of ranks that share memory. Every one begins in the same way: the rank shows what
/// it was asked for and where its data lies, waits for the others, and compares.
///
///   enter -> arrive -> (all have arrived: same operation?) -> run -> done
class SharedCollective : public Task {
 public:
  SharedCollective(SharedGroup& group, LoweredOp op, uint64_t number, uint64_t fingerprint);
  ~SharedCollective() override;

  Step step() final;
  WakeCondition wake_condition() const final;
  std::vector<int> missing() const final;
  bool certain() const final { return !program_ || program_->certain(); }

 protected:
  /// Called before this rank arrives: puts its data where the others can see it, and returns where.
  virtual Segments::Location show() = 0;

  /// Called after all have arrived and agreed, until it returns Done.
  virtual Step run() = 0;

  /// Returns Stuck, and notes what to wait for, so that the right peer wakes this rank.
  Step wait_for(Channel channel, uint64_t value);

  /// From now on the collective runs as a program over streams, because some rank's data is
  /// private.
  Step run_program();

  /// The location of this memory if all ranks of the group have mapped it; else kStaged.
  Segments::Location locate(const void* data, int64_t bytes) const;
  /// Copies small data into this rank's slot, or into the arrival itself.
  Segments::Location put_in_slot(const void* data, int64_t bytes);
  /// The address of the data that rank `of` of the group has shown.
  const std::byte* shown(int of) const;
  bool all_in_slots() const;
  bool any_staged() const;

  SharedGroup& group_;
  LoweredOp op_;

 private:
  bool same_operation();

  uint64_t fingerprint_;
  enum class Phase : uint8_t { Enter, Arrive, Run } phase_ = Phase::Enter;
  Channel waiting_on_ = kArrived;
  uint64_t waiting_for_ = 0;
  bool waiting_ = false;
  std::unique_ptr<ProgramRun> program_;
};

/// The task for an operation of this group: SharedAllReduce or PullCollective.
std::shared_ptr<Task> make_shared_collective(SharedGroup& group, LoweredOp op, uint64_t number,
                                             uint64_t fingerprint);

}  // namespace trireme::comm
