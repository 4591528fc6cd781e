#pragma once

#include <memory>
#include <vector>

#include "trireme/comm/job.h"
#include "trireme/comm/program_run.h"
#include "trireme/comm/shared/group.h"
#include "trireme/comm/task.h"

namespace trireme::comm {

/// A collective of ranks that share memory. All of them begin alike: show what this rank was asked
/// for and where its data lies, wait for the others, and compare.
///
///   enter -> arrive -> (all there: same operation?) -> run -> done
class SharedCollective : public Task {
 public:
  SharedCollective(SharedGroup& group, Job job, uint64_t number, uint64_t fingerprint);
  ~SharedCollective() override;

  Step step() final;
  Hint hint() const final;
  std::vector<int> missing() const final;
  bool certain() const final { return !program_ || program_->certain(); }

 protected:
  /// Before this rank arrives: puts its data where the others can see it, and says where.
  virtual Segments::Location show() = 0;

  /// After all have arrived and agreed; called until it says Done.
  virtual Step run() = 0;

  /// Run says Stuck through this, so that the right peer wakes this rank.
  Step wait_for(Channel channel, uint64_t value);

  /// From now on the collective runs as a program over streams: somebody's data is private.
  Step run_program();

  /// This rank's location of memory that all ranks of the group see; else staged.
  Segments::Location locate(const void* data, int64_t bytes) const;
  /// Copies small data to where it travels with the arrival.
  Segments::Location put_in_slot(const void* data, int64_t bytes);
  /// Where rank `of` of the group has shown its data.
  const std::byte* shown(int of) const;
  bool all_in_slots() const;
  bool any_staged() const;

  SharedGroup& group_;
  Job job_;

 private:
  bool same_operation();

  uint64_t fingerprint_;
  enum class Stage : uint8_t { Enter, Arrive, Run } stage_ = Stage::Enter;
  Channel waiting_on_ = kArrived;
  uint64_t waiting_for_ = 0;
  bool waiting_ = false;
  std::unique_ptr<ProgramRun> program_;
};

/// The task for a job of this group: all_reduce, or one of those that pull.
std::shared_ptr<Task> make_shared_collective(SharedGroup& group, Job job, uint64_t number,
                                             uint64_t fingerprint);

}  // namespace trireme::comm
