#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "trireme/ps/connections.h"
#include "trireme/ps/manager_place.h"
#include "trireme/ps/node.h"
#include "trireme/ps/save_thread.h"

namespace trireme::ps {

/// What a node of a real process needs, whatever its role.
struct NodeOptions {
  Connections::Options connections;                     ///< `find` is filled in
  std::shared_ptr<ManagerPlace> place;                  ///< where the manager is
  std::shared_ptr<ManagerLog> log = {};                 ///< the manager's
  std::shared_ptr<const SnapshotFiles> snapshots = {};  ///< null: there are none
  std::function<void(const std::string&)> note = [](const std::string&) {};
};

/// Runs a node on real time, streams and files. One thread at a time does something to the node:
/// its own, or one that calls `call` or `wait`, which then handles messages itself instead of
/// waiting for a thread to be woken.
///
///   its thread     poll ──> lock ──> messages ──> tick ──> unlock ──> poll ...
///   another        call(f): lock ──> f(node) ──> unlock
///                  wait(done): lock ──> messages until done() ──> unlock
class NodeThread {
 public:
  /// Opens the streams: where it listens is known then. Nothing runs yet.
  explicit NodeThread(NodeOptions options);
  ~NodeThread();
  NodeThread(const NodeThread&) = delete;
  NodeThread& operator=(const NodeThread&) = delete;

  const Endpoint& endpoint() const { return connections_.endpoint(); }

  using Make = std::function<std::unique_ptr<Node>(Environment&)>;
  /// Makes the node and runs it until this object is destroyed, or it throws.
  void start(const Make& make);

  /// Does something to the node now. Throws what has ended the node, if it is over.
  void call(const std::function<void(Node&)>& call);
  /// Runs the node on this thread until `done`, which is asked after every message, returns true.
  /// Returns false if that is not before the deadline. Throws what has ended the node.
  bool wait(const std::function<bool()>& done, net::Deadline until = net::Deadline::max());

  /// What has ended the node; null while it runs.
  std::exception_ptr failure() const;

  int64_t sent_bytes() const { return connections_.sent_bytes(); }

 private:
  class ProcessEnvironment;

  void loop(std::stop_token stop);
  void turn();
  void rest(std::unique_lock<std::mutex>& lock, net::Deadline until);
  void guard(const std::function<void()>& body);
  void on_saved(const SnapshotPart& part, std::string contents);
  bool is_wanted(const SnapshotPart& part) const;
  std::optional<Endpoint> find(LaneId who);
  std::optional<Endpoint> find_manager();

  NodeOptions options_;
  mutable std::mutex mutex_;  ///< of all below but `waiting_`
  Connections connections_;
  std::unique_ptr<ProcessEnvironment> environment_;
  std::unique_ptr<Node> node_;
  net::Deadline tick_at_;
  net::Deadline yields_until_;
  net::Deadline note_again_;
  std::exception_ptr failure_;
  std::atomic<int> waiting_ = 0;  ///< threads in `wait`
  std::jthread thread_;
  SaveThread saver_;  // last: it calls on_saved
};

}  // namespace trireme::ps
