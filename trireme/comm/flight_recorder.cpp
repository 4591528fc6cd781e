#include "trireme/comm/flight_recorder.h"

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

FlightRecorder::FlightRecorder(int rank, std::optional<std::string> folder)
    : rank_(rank), folder_(std::move(folder)) {}

uint64_t FlightRecorder::started(const std::string& group, uint64_t number,
                                 const core::OpInfo& info) {
  Record& record = records_[count_ % kRecords];
  const auto length = std::min(group.size(), record.group.size() - 1);
  std::copy_n(group.begin(), length, record.group.begin());
  record.group[length] = '\0';
  record.number = number;
  record.info = info;
  record.started = coarse_now();
  record.finished = {};
  return count_++;
}

void FlightRecorder::finished(uint64_t index) {
  if (count_ - index <= kRecords) records_[index % kRecords].finished = coarse_now();
}

void FlightRecorder::write(const std::string& cause) noexcept {
  if (!folder_) return;
  try {
    if (std::exchange(written_, true)) return;
    const auto now = coarse_now();
    core::Json ops = core::Json::array();
    for (uint64_t i = count_ - std::min<uint64_t>(count_, kRecords); i < count_; ++i) {
      const Record& record = records_[i % kRecords];
      core::Json op = {{"group", record.group.data()},
                       {"number", record.number},
                       {"op", core::to_string(record.info)},
                       {"started_us_ago", micros(now - record.started)}};
      const bool done = record.finished != nanoseconds{};
      op["state"] = done ? "finished" : "pending";
      if (done) op["took_us"] = micros(record.finished - record.started);
      ops.push_back(std::move(op));
    }
    const core::Json record = {{"rank", rank_}, {"cause", cause}, {"ops", std::move(ops)}};
    ::mkdir(folder_->c_str(), 0777);
    std::ofstream(*folder_ + "/rank-" + std::to_string(rank_) + ".json") << record.dump(1) << '\n';
  } catch (...) {  // a record that cannot be written must not hide the failure itself
  }
}

}  // namespace trireme::comm
