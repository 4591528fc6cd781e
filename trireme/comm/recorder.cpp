#include "trireme/comm/recorder.h"

#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <fstream>

#include "trireme/core/json.h"

namespace trireme::comm {

namespace {

using std::chrono::nanoseconds;

nanoseconds coarse_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return std::chrono::seconds(now.tv_sec) + nanoseconds(now.tv_nsec);
}

int64_t micros(nanoseconds duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

}  // namespace

Recorder::Recorder(int rank, std::optional<std::string> folder)
    : rank_(rank), folder_(std::move(folder)) {}

uint64_t Recorder::started(const std::string& group, uint64_t number, const core::OpInfo& info) {
  Entry& entry = entries_[count_ % kEntries];
  const auto length = std::min(group.size(), entry.group.size() - 1);
  std::copy_n(group.begin(), length, entry.group.begin());
  entry.group[length] = '\0';
  entry.number = number;
  entry.info = info;
  entry.started = coarse_now();
  entry.finished = {};
  return count_++;
}

void Recorder::finished(uint64_t place) {
  if (count_ - place <= kEntries) entries_[place % kEntries].finished = coarse_now();
}

void Recorder::write(const std::string& cause) noexcept {
  if (!folder_) return;
  try {
    if (std::exchange(written_, true)) return;
    const auto now = coarse_now();
    core::Json ops = core::Json::array();
    for (uint64_t i = count_ - std::min<uint64_t>(count_, kEntries); i < count_; ++i) {
      const Entry& entry = entries_[i % kEntries];
      core::Json op = {{"group", entry.group.data()},
                       {"number", entry.number},
                       {"op", core::to_string(entry.info)},
                       {"started_us_ago", micros(now - entry.started)}};
      const bool done = entry.finished != nanoseconds{};
      op["state"] = done ? "finished" : "pending";
      if (done) op["took_us"] = micros(entry.finished - entry.started);
      ops.push_back(std::move(op));
    }
    const core::Json record = {{"rank", rank_}, {"cause", cause}, {"ops", std::move(ops)}};
    ::mkdir(folder_->c_str(), 0777);
    std::ofstream(*folder_ + "/rank-" + std::to_string(rank_) + ".json") << record.dump(1) << '\n';
  } catch (...) {  // a record that cannot be written must not hide the failure itself
  }
}

}  // namespace trireme::comm
