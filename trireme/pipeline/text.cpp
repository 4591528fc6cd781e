#include "trireme/pipeline/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <optional>

namespace trireme::pipeline {

namespace {

/// A cell for a message: short, and without control characters.
std::string printable(std::string_view cell) {
  constexpr std::size_t kMost = 60;
  std::string text;
  for (const char one : cell.substr(0, kMost))
    text += static_cast<unsigned char>(one) < 32 || one == 127 ? '?' : one;
  return cell.size() > kMost ? text + "..." : text;
}

constexpr std::string_view kPair = "OVERLAP_F_B", kDigits = "0123456789", kSpace = " \t\r";

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

/// Removes the part before `mark` from the text and returns it; all of the text, if there is no
/// mark.
std::string_view take_until(std::string_view& text, char mark) {
  const auto end = text.find(mark);
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end == text.npos ? text.size() : end + 1);
  return part;
}

std::optional<int> number_of(std::string_view digits) {
  int number = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

std::optional<Act> act_of(std::string_view name) {
  for (int act = 0; act < kNumActs; ++act)
    if (to_string(static_cast<Act>(act)) == name) return static_cast<Act>(act);
  return std::nullopt;
}

/// "2F0" or "1UNSHARD": the stage, the act and, where the act has one, the micro-batch.
std::optional<Action> parse_action(std::string_view text) {
  text = trimmed(text);
  const auto name_at = std::min(text.find_first_not_of(kDigits), text.size());
  const auto micro_at = text.find_last_not_of(kDigits) + 1;
  if (name_at == 0 || micro_at <= name_at) return std::nullopt;
  const auto stage = number_of(text.substr(0, name_at));
  const auto act = act_of(text.substr(name_at, micro_at - name_at));
  if (!stage || !act || has_micro(*act) == (micro_at == text.size())) return std::nullopt;
  const auto micro = has_micro(*act) ? number_of(text.substr(micro_at)) : kNoMicro;
  if (!micro) return std::nullopt;
  return Action{*stage, *act, *micro};
}

class Reader {
 public:
  explicit Reader(std::string name) { schedule_.name = std::move(name); }

  Schedule read(std::string_view text) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    while (!text.empty()) read_row(take_until(text, '\n'));
    if (num_actions_ == 0) refuse("has no action: write a row for every rank, as in 0F0,0B0");
    std::vector<Program>& programs = schedule_.programs;
    while (programs.back().empty()) programs.pop_back();  // blank lines at the end
    finish_shape();
    return std::move(schedule_);
  }

 private:
  /// An action and the cell that it was read from.
  struct Cell {
    Action action;
    int row, column;
  };

  void read_row(std::string_view row) {
    schedule_.programs.emplace_back();
    ++row_;
    column_ = 0;
    while (!row.empty()) {
      std::string_view cell = trimmed(take_until(row, ','));
      ++column_;
      if (cell.size() >= 2 && cell.starts_with('"') && cell.ends_with('"'))
        cell = trimmed(cell.substr(1, cell.size() - 2));
      if (!cell.empty()) read_cell(cell);
    }
  }

  void read_cell(std::string_view cell) {
    if (!cell.starts_with('(')) return add(parse_action(cell), cell, Join::Alone);
    std::string_view rest = cell.substr(1);
    std::string_view inside = take_until(rest, ')');
    const auto first = parse_action(take_until(inside, ';'));
    const auto second = parse_action(inside);
    const bool pair = first && second && trimmed(rest) == kPair;
    add(pair ? first : std::nullopt, cell, Join::WithNext);
    add(second, cell, Join::Alone);
  }

  void add(std::optional<Action> action, std::string_view cell, Join join) {
    if (!action)
      refuse_cell(
          "'{}' is not an action; write stage, act and micro-batch, as in 2F0, 1UNSHARD or "
          "(0F1;3B0)OVERLAP_F_B",
          printable(cell));
    action->join = join;
    schedule_.programs.back().push_back(*action);
    ++num_actions_;
    if (highest_stage_.row == 0 || action->stage > highest_stage_.action.stage)
      highest_stage_ = {*action, row_, column_};
    if (highest_micro_.row == 0 || action->micro > highest_micro_.action.micro)
      highest_micro_ = {*action, row_, column_};
    if (is_compute(action->act)) place(*action);
  }

  void place(const Action& action) {
    constexpr int kMostStages = 1 << 20;
    const auto stage = static_cast<std::size_t>(action.stage);
    if (action.stage >= kMostStages)
      refuse_cell("{} has stage {}; a schedule has at most {} stages", to_text(action), stage,
                  kMostStages);
    std::vector<int>& placement = schedule_.placement;
    if (stage >= placement.size()) placement.resize(stage + 1, kNoRank);
    if (placement[stage] == kNoRank) placement[stage] = row_ - 1;
    if (placement[stage] != row_ - 1)
      refuse_cell("{} on rank {}, but rank {} computes stage {} already: a stage is on one rank",
                  to_text(action), row_ - 1, placement[stage], stage);
  }

  /// Sets the number of micro-batches, and checks the highest stage and micro-batch. Every stage
  /// computes every micro-batch, so neither number can exceed the number of actions.
  void finish_shape() {
    if (highest_micro_.action.micro >= num_actions_) {
      row_ = highest_micro_.row, column_ = highest_micro_.column;
      refuse_cell("{} has micro-batch {}, but there are only {} actions",
                  to_text(highest_micro_.action), highest_micro_.action.micro, num_actions_);
    }
    schedule_.micros = std::max(highest_micro_.action.micro + 1, 1);
    const auto& placement = schedule_.placement;
    const auto missing = std::ranges::find(placement, kNoRank) - placement.begin();
    if (highest_stage_.action.stage < missing) return;
    row_ = highest_stage_.row, column_ = highest_stage_.column;
    refuse_cell("{} is in the file, but no rank computes stage {}", to_text(highest_stage_.action),
                missing);
  }

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> sentence, Args&&... args) const {
    throw ScheduleError(fmt::format("schedule '{}' {}", schedule_.name,
                                    fmt::format(sentence, std::forward<Args>(args)...)));
  }
  template <class... Args>
  [[noreturn]] void refuse_cell(fmt::format_string<Args...> sentence, Args&&... args) const {
    throw ScheduleError(fmt::format("schedule '{}', row {}, column {}: {}", schedule_.name, row_,
                                    column_, fmt::format(sentence, std::forward<Args>(args)...)));
  }

  static constexpr int kNoRank = -1;

  Schedule schedule_;
  int row_ = 0, column_ = 0;  ///< as people count, from 1
  int num_actions_ = 0;
  Cell highest_stage_{}, highest_micro_{};
};

}  // namespace

std::vector<std::string> to_cells(const Program& program) {
  std::vector<std::string> cells;
  bool in_pair = false;
  for (const Action& action : program) {
    if (in_pair)
      cells.back() += fmt::format(";{}){}", to_text(action), kPair);
    else
      cells.push_back((action.join == Join::WithNext ? "(" : "") + to_text(action));
    in_pair = action.join == Join::WithNext && !in_pair;
  }
  return cells;
}

std::string to_csv(const Schedule& schedule) {
  std::string text;
  for (const Program& program : schedule.programs)
    text += fmt::format("{}\n", fmt::join(to_cells(program), ","));
  return text;
}

Schedule parse_csv(std::string name, std::string_view text) {
  return Reader(std::move(name)).read(text);
}

namespace {
constexpr std::size_t kMostBytes = std::size_t{256} << 20;
}  // namespace

Schedule read_csv(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::array<char, 1 << 16> part;
  while (file.read(part.data(), part.size()), file.gcount() > 0) {
    text.append(part.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMostBytes)
      throw ScheduleError(
          fmt::format("the schedule file '{}' is longer than {} MiB: it is not a schedule", path,
                      kMostBytes >> 20));
  }
  if (!file.is_open() || file.bad())
    throw ScheduleError(fmt::format("the schedule file '{}' cannot be read", path));
  return parse_csv(path, text);
}

}  // namespace trireme::pipeline
