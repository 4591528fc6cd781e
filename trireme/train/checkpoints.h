#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>

#include "trireme/checkpoint/saver.h"
#include "trireme/optim/resumable.h"
#include "trireme/parallel/attached.h"
#include "trireme/train/run_folder.h"

namespace trireme::train {

struct CheckpointsOptions {
  int64_t keep = 3;  ///< the newest so many stay
};

/// Saves and resumes a training loop of one's own, on any mesh.
///
///   train::Checkpoints checkpoints("runs/mine", replicas, optimizer);     // 1: where, and of what
///   int64_t step = checkpoints.resume();                                  // 2: 0 in a new run
///   data::Loader loader(dataset, order, rank, size, step);                // goes on where it was
///   while (step < 1000) {
///     ...
///     optimizer.step();
///     if (++step % 100 == 0) checkpoints.save(step);                      // 3: while it goes on
///   }
///
/// `attached` is a DataParallel, FullySharded or Pipeline, the optimizer one of ours or of torch's
/// (AdamW, Adam, SGD) on its parameters. The state is weights, buffers, the optimizer's tensors and
/// counts; the step stands for the place in the data and in a schedule of learning rates. On the
/// same mesh a loop that was killed goes on to the same bits; any other mesh continues it, too.
/// `trireme ckpt` looks into the folder.
class Checkpoints {
 public:
  /// Throws ConfigError if the folder cannot be written, or another run is in it. Collective.
  Checkpoints(std::string folder, parallel::Attached& attached, torch::optim::Optimizer& optimizer,
              CheckpointsOptions options = {});
  Checkpoints(std::string folder, parallel::Attached& attached, optim::Resumable& optimizer,
              CheckpointsOptions options = {});
  /// Waits until the last one is on disk.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  /// Loads the newest whole checkpoint and returns its step; 0 if there is none. Damaged ones are
  /// named, passed over and put aside. Collective.
  int64_t resume();

  /// What was given to the `save` that was resumed from.
  const core::Json& extra() const { return extra_; }

  /// Copies the state and returns; a thread writes it. `extra` is kept with it: whatever else the
  /// loop needs, the same on every rank. Collective.
  void save(int64_t step, core::Json extra = core::Json::object());

  /// Until the last one is on disk. Throws Error if it could not be written. Collective.
  void wait();

 private:
  Checkpoints(std::string folder, parallel::Attached& attached, optim::Resumable* given,
              std::unique_ptr<optim::Resumable> own, CheckpointsOptions options);

  std::string folder_;
  parallel::Attached& attached_;
  std::unique_ptr<optim::Resumable> own_;  ///< what makes torch's optimizer one
  optim::Resumable& optimizer_;
  std::optional<RunFolder> lock_;  ///< rank 0's
  checkpoint::Saver saver_;
  core::Json extra_ = core::Json::object();
};

}  // namespace trireme::train
