#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "trireme/ps/interval_set.h"
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
  std::vector<Endpoint> lanes = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(node, life, nonce, lanes);
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
/// The worker has done the task, and so holds none.
struct TaskDone {
  Task task = 0;
  uint32_t worker = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(task, worker);
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
/// The open snapshot cannot be saved: work goes on without it.
struct SnapshotGivenUp {
  template <class Archive>
  void fields(Archive&) {}
};
struct SnapshotComplete {
  uint64_t snapshot = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(snapshot);
  }
};

/// A worker said what came of a batch; kept until it is written to the run's files.
struct Reported {
  Batch batch = 0;
  std::string text = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(batch, text);
  }
};
/// The reports of all batches before this one are in the run's files.
struct ReportsWritten {
  Batch before = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(before);
  }
};
/// No task that begins at this one or later is handed out any more: the job ends early.
struct EndsAt {
  Task task = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(task);
  }
};
/// All work is done, and saved where that is wanted.
struct JobOver {
  template <class Archive>
  void fields(Archive&) {}
};
/// All that the records before it have made: the log begins anew with it.
struct BooksImage {
  std::string bytes = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(bytes);
  }
};

using Decision =
    std::variant<LifeBegins, LifeEnds, ServerLeaves, RangeAssigned, RolledBack, TaskGiven, TaskDone,
                 WorkerIdle, SnapshotOrdered, SnapshotComplete, SnapshotGivenUp, Reported,
                 ReportsWritten, EndsAt, JobOver, BooksImage>;

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

  /// The sum of the decisions so far, as one.
  BooksImage image() const;

  struct NodeRecord {
    Life life = 0;
    uint64_t nonce = 0;
    bool lives = false;
    bool leaves = false;
    std::set<uint64_t> former = {};  ///< nonces of earlier lives, whose greetings may come late
    std::vector<Endpoint> lanes = {};
    template <class Archive>
    void fields(Archive& archive) {
      archive(life, nonce, lives, leaves, former, lanes);
    }
  };
  const NodeRecord* node(NodeId id) const;
  const std::map<NodeId, NodeRecord>& nodes() const { return nodes_; }
  bool lives(Member server) const;

  const View& view() const { return view_; }

  uint64_t num_tasks() const { return num_tasks_; }
  bool is_done(Task task) const { return done_.contains(task); }
  bool all_done() const { return first_undone() >= num_tasks_; }
  uint64_t num_done() const { return done_.size(); }
  /// All tasks before it are done.
  Task first_undone() const { return done_.first_missing(0); }
  /// The same from `task` on.
  Task next_undone(Task task) const { return done_.first_missing(task); }
  /// Workers that live and were given the task.
  const std::vector<uint32_t>& holders(Task task) const;
  struct Holding {
    Task task = 0;
    Clock clock = 0;
    template <class Archive>
    void fields(Archive& archive) {
      archive(task, clock);
    }
  };
  std::optional<Holding> holding(uint32_t worker) const;
  bool is_active(uint32_t worker) const;
  /// The clock after the last that this worker, or any, was given.
  Clock next_clock(uint32_t worker) const;
  Clock latest_clock() const;
  /// The task after the last that was handed out.
  Task latest_task() const { return latest_task_; }

  /// The last complete one.
  const SnapshotOrder& snapshot() const { return snapshot_; }
  bool snapshot_has_all() const { return snapshot_.snapshot != 0 && done_in_snapshot_ == done_; }
  /// Lanes: the clock after the last of the job, and whether all work has been handed out.
  Clock end_clock() const;
  bool all_given() const { return latest_clock() >= end_clock(); }
  /// Steps of all workers that are done, counted from the beginning of the data order.
  uint64_t steps_done() const;
  uint64_t newest_order() const { return newest_order_; }
  /// Whether a head that was to save its part of the open snapshot is gone: nobody else saves it.
  bool order_is_lost() const { return order_is_lost_; }
  /// What workers said of batches from reports_written() on.
  const std::map<Batch, std::string>& reports() const { return reports_; }
  Batch reports_written() const { return reports_written_; }

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
  void on(const SnapshotGivenUp& decision);
  void on(const Reported& decision);
  void on(const ReportsWritten& decision);
  void on(const EndsAt& decision);
  void on(const JobOver& decision);
  void on(const BooksImage& decision);

  template <class Archive>
  void fields(Archive& archive);
  void view_changed() { view_.version = records_; }
  void servers_changed();
  void workers_changed();
  void release_tasks(uint32_t worker);

  const JobConfig& job_;
  uint64_t records_ = 0;
  std::map<NodeId, NodeRecord> nodes_;
  View view_;
  uint64_t num_tasks_ = 0;
  IntervalSet done_;
  std::map<Task, std::vector<uint32_t>> holders_;
  std::map<uint32_t, Holding> holdings_;
  std::map<uint32_t, Clock> next_clocks_;
  Task latest_task_ = 0;
  Clock first_clock_ = 0;        ///< lanes: where this generation began
  SnapshotOrder snapshot_ = {};  ///< the last complete one
  uint64_t newest_order_ = 0;
  bool order_is_lost_ = false;
  IntervalSet done_in_snapshot_;  ///< tasks that the last complete snapshot has
  IntervalSet done_in_order_;     ///< and that the ordered one will have
  std::map<Batch, std::string> reports_;
  Batch reports_written_ = 0;
};

}  // namespace trireme::ps
