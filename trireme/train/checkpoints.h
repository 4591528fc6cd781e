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
  int64_t keep = 3;  ///< how many of the newest stay
};

/// Saves and resumes your own training loop, on any mesh.
///
///   train::Checkpoints checkpoints("runs/mine", replicas, optimizer);   // 1: where, and what
///   int64_t step = checkpoints.resume();                                // 2: 0 in a new run
///   data::Loader loader(dataset, order, rank, size, step);
///   while (step < 1000) {
///     ...
///     optimizer.step();
///     if (++step % 100 == 0) checkpoints.save(step);                    // 3: in the background
///   }
///
/// `attached` is a DataParallel, FullySharded or Pipeline; the optimizer is one of ours or of torch
/// (AdamW, Adam, SGD) on its parameters. The state is weights, buffers, the optimizer's tensors and
/// counts. The step also tells the position in the data and in a schedule of learning rates. A loop
/// that was killed continues with the same bits on the same mesh; it can also continue on another
/// mesh. `trireme ckpt` shows what is in the folder.
class Checkpoints {
 public:
  /// Throws ConfigError if the folder cannot be written, or another run is in it. Collective.
  Checkpoints(std::string folder, parallel::Attached& attached, torch::optim::Optimizer& optimizer,
              CheckpointsOptions options = {});
  Checkpoints(std::string folder, parallel::Attached& attached, optim::Resumable& optimizer,
              CheckpointsOptions options = {});
  /// Waits until the last checkpoint is on disk.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  /// Loads the newest complete checkpoint and returns its step; 0 if there is none. Damaged ones
  /// are named, skipped and moved aside. Collective.
  int64_t resume();

  /// The `extra` of the checkpoint that was resumed from.
  const core::Json& extra() const { return extra_; }

  /// Copies the state and returns; a thread writes it. `extra` is saved with it: whatever else the
  /// loop needs, the same on every rank. Collective.
  void save(int64_t step, core::Json extra = core::Json::object());

  /// Waits until the last checkpoint is on disk. Throws Error if it could not be written.
  /// Collective.
  void wait();

 private:
  Checkpoints(std::string folder, parallel::Attached& attached, optim::Resumable* given,
              std::unique_ptr<optim::Resumable> own, CheckpointsOptions options);

  std::string folder_;
  parallel::Attached& attached_;
  std::unique_ptr<optim::Resumable> own_;  ///< adapts an optimizer of torch
  optim::Resumable& optimizer_;
  std::optional<RunFolder> lock_;  ///< only on rank 0
  checkpoint::Saver saver_;
  core::Json extra_ = core::Json::object();
};

}  // namespace trireme::train
