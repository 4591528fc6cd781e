#include "trireme/core/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "trireme/core/json.h"

namespace trireme::core {

namespace {

using std::chrono::nanoseconds;

constexpr std::string_view name_of(Trace::Row row) {
  return row == Trace::Row::Actions ? "actions" : row == Trace::Row::Ops ? "ops" : "gpu";
}

/// Microseconds with three decimals, exactly: viewers drop events that seem to overlap.
std::string microseconds(nanoseconds time) {
  const int64_t ns = std::max<int64_t>(0, time.count());
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

}  // namespace

Trace::Trace(int rank, nanoseconds origin)
    : rank_(rank), offset_(time_of_day() - Clock::now().time_since_epoch() - origin) {}

nanoseconds Trace::time_of_day() {
  return std::chrono::system_clock::now().time_since_epoch();
}

void Trace::add(Row row, std::string name, Clock::time_point begin, Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  if (events_.size() >= kMostEvents)
    ++dropped_;
  else
    events_.push_back({row, std::move(name), begin, end});
}

void Trace::before_take(std::function<void()> add_more) {
  const std::lock_guard lock(mutex_);
  before_take_.push_back(std::move(add_more));
}

std::string Trace::take() {
  std::unique_lock lock(mutex_);
  const auto late = before_take_;
  lock.unlock();
  for (const auto& add_more : late) add_more();
  lock.lock();
  std::string text = fmt::format(
      "{{\"ph\":\"M\",\"pid\":{0},\"name\":\"process_name\",\"args\":{{\"name\":\"rank "
      "{0}\"}}}},\n",
      rank_);
  std::vector<Row> rows = {Row::Actions, Row::Ops};
  if (std::ranges::any_of(events_, [](const Event& one) { return one.row == Row::Gpu; }))
    rows.push_back(Row::Gpu);
  for (const Row row : rows)
    text += fmt::format(
        "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{}\"}}"
        "}},\n",
        rank_, static_cast<int>(row), name_of(row));
  std::size_t id = 0;
  for (const Event& one : events_) {
    const std::string what = fmt::format(
        "\"pid\":{},\"tid\":{},\"cat\":\"{}\",\"name\":{}", rank_, static_cast<int>(one.row),
        name_of(one.row), Json(one.name).dump(-1, ' ', false, Json::error_handler_t::replace));
    const std::string begin = microseconds(one.begin.time_since_epoch() + offset_);
    if (one.row != Row::Ops) {
      text += fmt::format("{{\"ph\":\"X\",{},\"ts\":{},\"dur\":{}}},\n", what, begin,
                          microseconds(one.end - one.begin));
      continue;
    }
    text +=
        fmt::format("{{\"ph\":\"b\",{},\"id\":\"{}.{}\",\"ts\":{}}},\n", what, rank_, ++id, begin);
    text += fmt::format("{{\"ph\":\"e\",{},\"id\":\"{}.{}\",\"ts\":{}}},\n", what, rank_, id,
                        microseconds(one.end.time_since_epoch() + offset_));
  }
  if (dropped_ > 0)
    text += fmt::format(
        "{{\"ph\":\"M\",\"pid\":{},\"name\":\"process_labels\",\"args\":{{\"labels\":\"{} events "
        "were "
        "not kept\"}}}},\n",
        rank_, dropped_);
  events_.clear();
  dropped_ = 0;
  return text;
}

std::string Trace::merged(const std::vector<std::string>& taken) {
  std::string all = "[\n";
  for (const std::string& one : taken) all += one;
  if (all.ends_with(",\n")) all.resize(all.size() - 2);
  return all + "\n]\n";
}

}  // namespace trireme::core
