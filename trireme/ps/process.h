#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trireme/ps/connections.h"
#include "trireme/ps/environment.h"
#include "trireme/ps/node.h"

namespace trireme::ps {

/// The Environment of a real process: the steady clock, tcp, and files.
///
///   FOLDER/log.server-2        of this node alone; append, fsync
///   FOLDER/files/NAME          that all nodes see: a file system that the hosts share
class ProcessEnvironment final : public Environment {
 public:
  /// Makes the folder. Throws CheckpointError if it cannot be written.
  ProcessEnvironment(const std::string& folder, NodeId me, Connections& connections,
                     std::function<void(const std::string&)> note);
  ~ProcessEnvironment() override;

  Time now() override;
  uint64_t random() override;
  void send(NodeId to, std::string message) override;
  void append(std::string_view record) override;
  void sync() override;
  std::string read_log() override;
  void truncate_log(size_t bytes) override;
  void save(const std::string& name, std::string bytes) override;
  std::optional<std::string> load(const std::string& name) override;
  void note(const std::string& line) override { note_(line); }

 private:
  std::string path_of(const std::string& name) const;

  std::string folder_, log_path_;
  Connections& connections_;
  std::function<void(const std::string&)> note_;
  net::Fd log_;
};

/// Runs a node in this process, on a thread of its own, until it is destroyed.
///
///   the thread    ── step: messages ──> node.receive ── every few ms ──> node.tick ── posted calls
///   other threads ── post(call) ──────────────────────────────────────────────────────────^
class NodeProcess {
 public:
  struct Options {
    Connections::Options connections;
    std::string folder;
    std::function<void(const std::string&)> note = [](const std::string&) {};
    /// Called once, when the node listens and before it speaks: tells others where it is.
    std::function<void(const net::Address&)> listening = {};
  };
  using Make = std::function<std::unique_ptr<Node>(Environment&)>;

  /// `make` builds the node; it runs on the thread, as does everything that the node does. If the
  /// node throws, the thread ends, and so does the program unless `failed` is asked for.
  NodeProcess(Options options, const Make& make);
  ~NodeProcess();
  NodeProcess(const NodeProcess&) = delete;
  NodeProcess& operator=(const NodeProcess&) = delete;

  /// Runs a call on the thread, soon. What it throws ends the node.
  void post(std::function<void(Node&)> call);
  /// The same, and waits for it. Throws what ended the node, if that comes first.
  void run(const std::function<void(Node&)>& call);

  /// What has ended the node; null while it runs.
  std::exception_ptr failure() const;

 private:
  void loop();
  void call_posted();

  Options options_;
  std::unique_ptr<Connections> connections_;
  std::unique_ptr<ProcessEnvironment> environment_;
  std::unique_ptr<Node> node_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void(Node&)>> posted_;
  std::exception_ptr failure_;
  std::atomic<bool> stops_ = false;
  std::jthread thread_;
};

}  // namespace trireme::ps
