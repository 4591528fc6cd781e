#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/schedule_views.h"

namespace trireme::cli {

namespace {

using pipeline::Act;
using pipeline::Action;
using pipeline::Join;
using pipeline::Span;

constexpr char kIdle = '.', kLonger = '-', kPaired = '+', kUpdated = 'U';
constexpr double kMostColumns = 1 << 18;  // beyond it, short acts lose their labels
constexpr int kMostBands = 16;            // longer grids are unreadable; use svg

std::string label_of(const Action& action, bool with_stage) {
  if (with_stage) return to_text(action);
  return fmt::format("{}{}", to_string(action.act), action.micro);
}

/// One row: a character for each unit of time, and the act that it belongs to.
struct Row {
  std::string text;
  std::vector<int> acts;  ///< -1: none
};

/// Lays spans out in characters. The scale is such that the shortest span has room for the longest
/// label and a space.
///
///     F0 F1 F2 ........ B0--- F3 B1---      label, then dashes to the end; dots are idle
///     0F4+3B0-- B1---U                      a pair is joined by +; U: the stage is updated
class GridLayout {
 public:
  explicit GridLayout(const PricedSchedule& priced) : priced_(priced) {
    double shortest = std::numeric_limits<double>::max();
    std::size_t longest = 0;
    for (const auto& spans : priced.timeline.ranks)
      for (const Span& span : spans) {
        if (!is_compute(span.action.act)) continue;
        if (span.end > span.begin) shortest = std::min(shortest, span.end - span.begin);
        longest = std::max(longest, label_of(span.action, priced.has_chunks()).size());
      }
    cell_ = static_cast<int>(longest) + 1;
    per_unit_ = std::min(cell_ / shortest, kMostColumns / priced.timeline.end());
    width_ = column(priced.timeline.end());
  }

  int width() const { return width_; }
  int cell() const { return cell_; }
  double time_at(int column) const { return column / per_unit_; }
  int column(double time) const { return static_cast<int>(std::lround(time * per_unit_)); }

  Row row(int rank) const {
    Row row{std::string(static_cast<std::size_t>(width_), kIdle),
            std::vector<int>(static_cast<std::size_t>(width_), -1)};
    int idle_since = 0;
    for (const Span& span : priced_.timeline.ranks[static_cast<std::size_t>(rank)]) {
      const int begin = column(span.begin), end = column(span.end);
      if (span.action.act == Act::Update && begin > 0)
        row.text[static_cast<std::size_t>(begin - 1)] = kUpdated;
      if (!is_compute(span.action.act) || begin == end) continue;
      if (idle_since < begin) row.text[static_cast<std::size_t>(begin - 1)] = ' ';
      put(row, span, begin, end);
      idle_since = end;
    }
    return row;
  }

 private:
  void put(Row& row, const Span& span, int begin, int end) const {
    std::string text = label_of(span.action, priced_.has_chunks());
    text.resize(static_cast<std::size_t>(end - begin - 1), kLonger);
    text += span.action.join == Join::WithNext ? kPaired : ' ';
    row.text.replace(static_cast<std::size_t>(begin), text.size(), text);
    std::fill(row.acts.begin() + begin, row.acts.begin() + end - 1,
              static_cast<int>(span.action.act));
  }

  const PricedSchedule& priced_;
  double per_unit_ = 1;
  int cell_ = 0, width_ = 0;
};

/// Black on a light background, by act; the colours of the SVG.
std::string colour_of(int act) {
  constexpr int kColours[] = {117, 114, 80, 221};  // F, B, I, W
  return act < 0 ? "\x1b[0m" : fmt::format("\x1b[30;48;5;{}m", kColours[act]);
}

std::string part_of(const Row& row, int begin, int end, bool colour) {
  std::string text;
  int now = -1;
  for (int i = begin; i < end; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (colour && row.acts[at] != now) text += colour_of(now = row.acts[at]);
    text += row.text[at];
  }
  if (now != -1) text += colour_of(-1);
  text.resize(text.find_last_not_of(' ') + 1);
  return text;
}

/// The time axis above the columns from `begin` to `end`.
std::string axis(const GridLayout& layout, int begin, int end) {
  constexpr int kBetween = 12;
  std::string text;
  for (int at = begin; at < end; at += kBetween) {
    const std::string mark = fmt::format("{:.4g}", layout.time_at(at));
    if (at + static_cast<int>(mark.size()) > end) break;
    text += fmt::format("{:<{}}", mark, kBetween);
  }
  text.resize(text.find_last_not_of(' ') + 1);
  return text;
}

std::string legend(const PricedSchedule& priced) {
  std::string text = "F forward, ";
  if (priced.schedule.has(Act::Backward)) text += "B backward, ";
  if (priced.schedule.has(Act::BackwardInput)) text += "I its input half, W its weight half, ";
  if (priced.has_chunks()) text += "the stage before it, ";
  text += "the micro-batch after it; . idle";
  if (priced.has_pairs()) text += "; + overlapped";
  if (priced.schedule.has(Act::Update)) text += "; U update";
  return text;
}

}  // namespace

std::string draw_grid(const PricedSchedule& priced, GridOptions options) {
  const GridLayout layout(priced);
  const int ranks = priced.schedule.ranks();
  const std::string last = fmt::format("rank {}", ranks - 1);
  const int margin = static_cast<int>(last.size()) + 2;
  const int fitting = (options.columns - margin) / layout.cell() * layout.cell();
  const int room = options.columns > 0 ? std::max(fitting, 8 * layout.cell()) : layout.width();
  const int shown = std::min<int64_t>(layout.width(), int64_t{kMostBands} * room);
  std::vector<Row> rows;
  for (int rank = 0; rank < ranks; ++rank) rows.push_back(layout.row(rank));
  std::string text;
  for (int begin = 0; begin < shown; begin += room) {
    const int end = std::min(begin + room, shown);
    text += fmt::format("{:<{}}{}\n", "time", margin, axis(layout, begin, end));
    for (int rank = 0; rank < ranks; ++rank)
      text +=
          fmt::format("{:<{}}{}\n", fmt::format("rank {}", rank), margin,
                      part_of(rows[static_cast<std::size_t>(rank)], begin, end, options.colour));
    text += '\n';
  }
  if (shown < layout.width())
    text += fmt::format("(cut at time {:.4g} of {:.4g}; --format svg draws all)\n",
                        layout.time_at(shown), priced.timeline.end());
  text += fmt::format("{}\n{}\nin flight at most, by rank: {}\n{}\n", priced.title(),
                      priced.figures(), fmt::join(priced.peak_in_flight, " "), legend(priced));
  return text;
}

}  // namespace trireme::cli
