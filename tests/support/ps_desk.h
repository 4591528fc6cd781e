// A disk, a clock and a network that a test holds, for a manager or a server alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/ps/books.h"
#include "trireme/ps/environment.h"
#include "trireme/ps/job.h"
#include "trireme/ps/protocol.h"

namespace trireme::ps {

/// Keeps the log, the lines and the replies.
class Desk final : public Environment {
 public:
  Time now() override { return time; }
  uint64_t random() override { return ++random_; }
  void send(NodeId, uint32_t, Frame message) override { sent.push_back(decode(message).body); }
  uint64_t way_to(NodeId, uint32_t) override { return way; }
  bool is_open(uint64_t one) override { return one == way; }
  void append(std::string_view record) override { log += record; }
  void sync() override {
    if (lease_is_lost) throw CommError("this manager's lease has run out");
    acts.emplace_back("sync");
  }
  std::string read_log() override { return log; }
  void replace_log(std::string_view text) override { log = text; }
  void begin(const SnapshotOrder&) override {
    if (!folder_is_good) throw CheckpointError("cannot create step-00000000.tmp: read-only");
  }
  void save(const SnapshotPart&, RangeState::Image) override {}
  void complete(const SnapshotOrder&, const std::vector<std::string>&) override {
    acts.emplace_back("complete");
  }
  void prune(const SnapshotOrder& newest) override {
    acts.push_back(fmt::format("prune before {}", newest.snapshot));
  }
  void abandon(const SnapshotOrder& order) override {
    acts.push_back(fmt::format("abandon step {}", order.step));
  }
  std::optional<RangeState::Image> load(const SnapshotPart&) override {
    time += load_time;
    return {};
  }
  void note(const std::string& line) override { notes.push_back(line); }

  Time time{0}, load_time{0};
  uint64_t way = 0;  ///< the stream to everybody; 0: messages may be lost
  std::string log;
  bool folder_is_good = true;
  bool lease_is_lost = false;
  std::vector<std::string> notes;
  std::vector<std::string> acts;  ///< on the disk
  std::vector<Body> sent;

 private:
  uint64_t random_ = 6;
};

inline JobConfig two_servers() {
  JobConfig job{.name = "manager", .servers = 2, .copies = 1, .ranges = 3};
  job.data.batches_per_epoch = 4;
  job.tables = {{.name = "w", .elems = 6, .rule = make_sgd({})}};
  return job;
}

/// A log with these decisions.
inline std::string log_of(const std::vector<Decision>& decisions) {
  std::string log;
  for (const Decision& decision : decisions) log += encode_record(decision);
  return log;
}

}  // namespace trireme::ps
