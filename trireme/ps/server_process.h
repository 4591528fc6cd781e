#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "trireme/ps/node_thread.h"
#include "trireme/ps/server.h"

namespace trireme::ps {

/// A server with a thread, streams and ranges of its own for every lane. Lane 0 also speaks with
/// the manager.
///
///   thread 0: Server + lane 0 <──> manager, workers, other servers
///   thread 1: lane 1          <──> workers, other servers
class ServerProcess {
 public:
  /// `options.connections.me` and `.arena` are filled in. The job must outlive it.
  ServerProcess(const NodeOptions& options, const JobConfig& job, uint32_t index);

  /// Asks the manager to give its ranges to others. Then `may_stop` becomes true.
  void leave();
  bool may_stop();

  /// What has ended one of its threads; null while all run.
  std::exception_ptr failure() const;

 private:
  std::shared_ptr<ServerTotals> totals_ = std::make_shared<ServerTotals>();
  std::vector<std::unique_ptr<NodeThread>> threads_;  ///< by lane
};

}  // namespace trireme::ps
