#pragma once

#include <future>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/ps/client.h"
#include "trireme/ps/process.h"

namespace trireme::ps {

/// The manager has ended this worker's life, because it heard nothing for too long: what was under
/// way is lost here, and its work is given to others. Go on with `Session::next`.
class LifeLost : public CommError {
  using CommError::CommError;
};

/// A worker's blocking calls to servers and manager: a Client that runs on a thread of its own.
///
///   while (const auto work = session.next()) {
///     for (size_t step = 0; step < work->batches.size(); ++step) {
///       pull, compute, push: session.start({.clock = work->clock + step, ...}).get();
///     }
///     session.done(*work);
///   }
class Session {
 public:
  Session(NodeProcess::Options options, const JobConfig& job, uint32_t worker);

  /// The result comes when all ranges have answered. A life that ends first is a LifeLost.
  std::future<Client::Result> start(Client::Operation operation);

  struct Work {
    Task task = 0;
    std::vector<Batch> batches = {};
    Clock clock = 0;            ///< of the first
    uint64_t view_version = 0;  ///< for the operations
  };
  /// The next work, for which it waits; nothing: all work of the job is done. Throws LifeLost.
  std::optional<Work> next();
  /// All updates of this work are acknowledged. Said with the next call of `next`.
  void done(const Work& work) { done_ = work.task; }

  /// How often a life of this worker has ended.
  uint64_t lives_lost() const { return lives_lost_; }

 private:
  Client& client(Node& node) { return static_cast<Client&>(node); }
  std::optional<TaskReply> ask();
  void lose_life();

  const JobConfig& job_;
  std::optional<Task> done_;
  std::atomic<uint64_t> lives_lost_ = 0;
  // Of the thread.
  bool lives_ = false;
  uint64_t next_operation_ = 0;
  std::map<uint64_t, std::promise<Client::Result>> waiting_;
  std::optional<std::promise<TaskReply>> asking_;
  NodeProcess process_;  // last: its thread uses the others
};

}  // namespace trireme::ps
