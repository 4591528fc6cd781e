#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/task.h"
#include "trireme/core/op_info.h"

namespace trireme::comm {

/// The queue of one communicator: its collectives run one after the other, in the order in which
/// they were started. It also remembers the latest ones, to answer a peer that called something
/// else.
class Lane {
 public:
  Lane(uint64_t its_id, std::string its_name, std::vector<int> its_members, int its_rank)
      : id(its_id), name(std::move(its_name)), members(std::move(its_members)), rank(its_rank) {}

  const uint64_t id;
  std::string name;
  const std::vector<int> members;  ///< ranks in the world, in the order of this group
  const int rank;                  ///< in this group
  int size() const { return static_cast<int>(members.size()); }

  std::deque<std::shared_ptr<Task>> waiting;  ///< the first one runs
  uint64_t last_finished = 0;
  /// Whether the caller waited at once for the last op that may need the helper: [0] of the small
  /// ones, [1] of the large ones.
  std::array<std::atomic<bool>, 2> waited_at_once = {};

  void remember(uint64_t number, uint64_t fingerprint, const core::OpInfo& info) {
    recent_[number % recent_.size()] = {number, fingerprint, info};
  }
  std::optional<std::pair<uint64_t, core::OpInfo>> called(uint64_t number) const {
    const RecentOp& recent = recent_[number % recent_.size()];
    if (recent.number != number) return std::nullopt;
    return std::pair(recent.fingerprint, recent.info);
  }

 private:
  struct RecentOp {
    uint64_t number = 0, fingerprint = 0;
    core::OpInfo info;
  };
  std::array<RecentOp, 32> recent_{};
};

}  // namespace trireme::comm
