#include "sim/linear.h"

#include <algorithm>
#include <set>
#include <string>

namespace trireme::sim {

namespace {

/// Wing and Gong's search: any operation that began before the first end among those left may come
/// next. Which operations are left decides the counter, so a set that was tried once is not tried
/// again (Lowe).
///
///   time ->   |--add--|   |--read 1--|
///                 |----add----|              order: add, read 1, add
class Search {
 public:
  explicit Search(std::vector<CounterOp> ops) : ops_(std::move(ops)), used_(ops_.size(), '0') {}

  bool run() {
    if (!tried_.insert(used_).second) return false;
    ps::Time first_end = ps::Time::max();
    bool only_open = true;
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (used_[i] == '1') continue;
      first_end = std::min(first_end, ops_[i].end);
      only_open = only_open && ops_[i].end == ps::Time::max();
    }
    if (only_open) return true;
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (used_[i] == '1') continue;
      if (ops_[i].begin > first_end) break;  // sorted by begin
      if (ops_[i].is_read && ops_[i].value != count_) continue;
      if (try_next(i)) return true;
    }
    return false;
  }

 private:
  bool try_next(size_t i) {
    const double step = ops_[i].is_read ? 0 : 1;
    used_[i] = '1';
    count_ += step;
    const bool found = run();
    used_[i] = '0';
    count_ -= step;
    return found;
  }

  std::vector<CounterOp> ops_;
  std::string used_;
  double count_ = 0;
  std::set<std::string> tried_;
};

}  // namespace

bool is_linearizable(std::vector<CounterOp> ops) {
  std::ranges::sort(ops, {}, &CounterOp::begin);
  return Search(std::move(ops)).run();
}

}  // namespace trireme::sim
