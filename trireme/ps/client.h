#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/ps/arena.h"
#include "trireme/ps/client_node.h"
#include "trireme/ps/node_thread.h"

namespace trireme::ps {

/// The manager has ended this worker's life, because it heard nothing for too long, or because all
/// servers went back to a snapshot: what was under way is lost here, and the work is handed out
/// again. Go on with `Client::next`.
class LifeLost : public CommError {
  using CommError::CommError;
};

/// A worker's calls to servers and manager. A ClientNode runs on a thread of its own, which keeps
/// the worker alive while it computes; a call that waits handles messages itself.
///
///   while (const auto work = client.next()) {
///     for (size_t step = 0; step < work->batches.size(); ++step) {
///       pull, compute, push: client.wait(client.start({.clock = work->clock + step, ...}));
///     }
///     client.done(*work);
///   }
///
/// Of a worker of several processes, the first asks for work and passes it on; the others `follow`.
class Client {
 public:
  /// `worker`: the number of this process among those of all workers. The job must outlive it.
  Client(NodeOptions options, const JobConfig& job, uint32_t process);

  using Operation = ClientNode::Operation;
  using Result = ClientNode::Result;

  const JobConfig& job() const { return job_; }
  /// Memory that servers of this host can read where it is.
  const std::shared_ptr<Arena>& arena() const { return arena_; }

  /// An operation under way.
  class Pending {
   public:
    Pending() = default;
    bool started() const { return state_ != nullptr; }

   private:
    friend class Client;
    struct State {
      bool done = false;
      Result result = {};
      std::exception_ptr error = {};
    };
    std::shared_ptr<State> state_;
  };
  /// Begins an operation. Its memory belongs to it until it is done. If the life in which the work
  /// was asked for has ended, nothing is sent, and `wait` throws LifeLost.
  Pending start(Operation operation);
  /// Waits until all ranges have answered, with a line of progress every few seconds. Throws
  /// LifeLost if this life ends first, CommError if a server refuses.
  Result wait(const Pending& pending);

  /// See ClientNode::has_kept.
  void has_kept(TableId table, const void* keeper,
                const std::vector<ClientNode::PulledBlock>& blocks);

  struct Work {
    Task task = 0;
    std::vector<Batch> batches = {};
    Clock clock = 0;            ///< of the first
    uint64_t view_version = 0;  ///< for the operations
    Life life = 0;
  };
  /// The next work, for which it waits; nothing: all work of the job is done. Throws LifeLost.
  std::optional<Work> next();
  /// After `next` has returned nothing: the clock of a pull that sees all updates of the job.
  Clock end_clock() const { return end_clock_; }
  /// All updates of this work are acknowledged. Said with the next call of `next`.
  void done(const Work& work) { done_ = {work.task, work.life}; }
  /// Tells the manager what came of a batch. `finish` waits until it knows.
  void report(Batch batch, std::string text);
  void finish();

  /// Of a worker's other processes: takes part in the life of the first, in which it has seen this
  /// view.
  void follow(Life life, const View& view);
  View view();

  /// How often a life of this worker has ended.
  uint64_t lives_lost() const { return lives_lost_; }
  int64_t sent_bytes() const { return thread_.sent_bytes(); }

 private:
  static ClientNode& own(Node& node) { return static_cast<ClientNode&>(node); }
  std::optional<TaskReply> ask();
  void lose_life();
  void wait_with_progress(const std::function<bool()>& done);

  const JobConfig& job_;
  std::function<void(const std::string&)> note_;
  std::shared_ptr<Arena> arena_ = std::make_shared<Arena>();
  struct Done {
    Task task = 0;
    Life life = 0;
  };
  std::optional<Done> done_;
  Clock end_clock_ = 0;
  std::atomic<uint64_t> lives_lost_ = 0;
  // Of whoever has the node.
  uint64_t next_operation_ = 0;
  std::map<uint64_t, std::shared_ptr<Pending::State>> waiting_;
  NodeThread thread_;  // last: it uses the others
};

}  // namespace trireme::ps
