#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "trireme/ps/job.h"
#include "trireme/ps/protocol.h"
#include "trireme/ps/view.h"

namespace trireme::ps {

// What the manager can decide. One record of its log each:
//   | bytes: 4 | checksum: 8 | kind: 1 | fields |

struct LifeBegins {
  NodeId node = {};
  Life life = 0;
  uint64_t nonce = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(node, life, nonce);
  }
};
struct LifeEnds {
  NodeId node = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(node);
  }
};
struct ServerLeaves {
  uint32_t server = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(server);
  }
};
struct RangeAssigned {
  RangeId range = 0;
  Assignment assignment = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(range, assignment);
  }
};
/// All servers go back to the last snapshot, together; the ranges are dealt out anew.
struct RolledBack {
  std::vector<Assignment> ranges = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(ranges);
  }
};
struct TaskGiven {
  Task task = 0;
  uint32_t worker = 0;
  Clock clock = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(task, worker, clock);
  }
};
struct TaskDone {
  Task task = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(task);
  }
};
struct WorkerIdle {
  uint32_t worker = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(worker);
  }
};
struct SnapshotOrdered {
  SnapshotOrder order = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(order);
  }
};
struct SnapshotComplete {
  uint64_t snapshot = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(snapshot);
  }
};

using Decision = std::variant<LifeBegins, LifeEnds, ServerLeaves, RangeAssigned, RolledBack,
                              TaskGiven, TaskDone, WorkerIdle, SnapshotOrdered, SnapshotComplete>;

std::string encode_record(const Decision& decision);

/// The records of a log, up to the first that is torn or damaged, and how many bytes those have.
struct LogContent {
  std::vector<Decision> decisions;
  size_t bytes = 0;
};
LogContent read_records(std::string_view log);

/// All that the manager knows for sure: the sum of its decisions, and nothing else. A manager that
/// restarts has the same books as before.
class Books {
 public:
  explicit Books(const JobConfig& job);

  void apply(const Decision& decision);

  struct NodeRecord {
    Life life = 0;
    uint64_t nonce = 0;
    bool lives = false;
    bool leaves = false;
    std::set<uint64_t> former = {};  ///< nonces of earlier lives, whose greetings may come late
  };
  const NodeRecord* node(NodeId id) const;
  const std::map<NodeId, NodeRecord>& nodes() const { return nodes_; }
  bool lives(Member server) const;

  const View& view() const { return view_; }

  struct TaskRecord {
    bool done = false;
    std::vector<uint32_t> holders = {};  ///< workers that live and were given it
  };
  const std::vector<TaskRecord>& tasks() const { return tasks_; }
  bool all_done() const { return undone_ == 0; }
  /// All tasks before it are done.
  Task first_undone() const { return first_undone_; }
  struct Holding {
    Task task = 0;
    Clock clock = 0;
  };
  std::optional<Holding> holding(uint32_t worker) const;
  bool is_active(uint32_t worker) const;
  /// The clock after the last that this worker, or any, was given.
  Clock next_clock(uint32_t worker) const;
  Clock latest_clock() const;

  uint64_t last_snapshot() const { return snapshot_; }
  uint64_t newest_order() const { return newest_order_; }

 private:
  void on(const LifeBegins& decision);
  void on(const LifeEnds& decision);
  void on(const ServerLeaves& decision);
  void on(const RangeAssigned& decision);
  void on(const RolledBack& decision);
  void on(const TaskGiven& decision);
  void on(const TaskDone& decision);
  void on(const WorkerIdle& decision);
  void on(const SnapshotOrdered& decision);
  void on(const SnapshotComplete& decision);

  void view_changed() { view_.version = records_; }
  void workers_changed();
  void release_tasks(uint32_t worker);
  void count_tasks();

  const JobConfig& job_;
  uint64_t records_ = 0;
  std::map<NodeId, NodeRecord> nodes_;
  View view_;
  std::vector<TaskRecord> tasks_;
  uint64_t undone_ = 0;
  Task first_undone_ = 0;
  std::map<uint32_t, Holding> holdings_;
  std::map<uint32_t, Clock> next_clocks_;
  Clock first_clock_ = 0;     ///< lanes: where this generation began
  Clock snapshot_clock_ = 0;  ///< lanes: where the next would, after SnapshotComplete
  uint64_t snapshot_ = 0;     ///< the last complete one
  uint64_t newest_order_ = 0;
  std::vector<bool> done_in_snapshot_;  ///< tasks that the last complete snapshot has
  std::vector<bool> done_in_order_;     ///< and that the ordered one will have
};

}  // namespace trireme::ps
