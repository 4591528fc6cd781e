#pragma once

#include <atomic>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include "trireme/comm/communicator.h"

namespace trireme::train {

/// A counter that several ranks count on: each number goes to one of them. So a fast rank gets more
/// work than a slow one, and no work is done twice.
///
///   rank 0   counter ◀── own claims
///              ▲  ▲
///   rank 1 ────┘  └──── rank 2      a request is one message, the answer another; a thread of
///                                   rank 0 for each of the others answers
class Claims {
 public:
  /// Numbers from `first` up to `end`, which is not given out. Collective.
  Claims(const comm::Communicator& ranks, int64_t first, int64_t end);
  ~Claims();
  Claims(const Claims&) = delete;
  Claims& operator=(const Claims&) = delete;

  /// The next number; nothing if all are given out. Not collective.
  std::optional<int64_t> next();

  /// How far the counter is, on rank 0; only certain while nobody claims.
  int64_t reached() const { return std::min(counter_.load(), end_); }

 private:
  void serve(const comm::Communicator& peer);
  std::optional<int64_t> count();

  int64_t end_;
  std::atomic<int64_t> counter_;
  bool serves_;
  const int exceptions_ = std::uncaught_exceptions();  // in flight when it was made
  std::vector<comm::Communicator> pairs_;  // rank 0: with every other rank; else with rank 0
  std::vector<std::jthread> servers_;
};

}  // namespace trireme::train
