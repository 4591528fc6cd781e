#include "trireme/config/nearest.h"

#include <algorithm>
#include <string>
#include <vector>

#include "trireme/config/keys.h"

namespace trireme::config {

namespace {

constexpr std::size_t kLongestName = 64;  // nobody means a known name by more letters than that
constexpr int kWordCost = 2;              // a word of the other name, or its initials
constexpr int kOtherSectionCost = 4;      // the right name in the wrong section

std::vector<std::string_view> words_of(std::string_view name) {
  std::vector<std::string_view> words;
  while (!name.empty()) {
    const auto end = std::min(name.find_first_of("_-"), name.size());
    if (end > 0) words.push_back(name.substr(0, end));
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return words;
}

/// Whether `part` is one of the words of `whole`, give or take a letter, or their initials.
bool stands_for(std::string_view part, std::string_view whole) {
  const auto words = words_of(whole);
  if (words.size() < 2 || part.empty()) return false;
  std::string initials;
  for (const std::string_view word : words) initials += word.front();
  const auto is_part = [&](std::string_view word) {
    return edit_distance(part, word) * 4 <= static_cast<int>(part.size());
  };
  return part == initials || std::ranges::any_of(words, is_part);
}

}  // namespace

int edit_distance(std::string_view from, std::string_view to) {
  // Rows of the usual table; the one before the last is for swapped neighbours.
  std::vector<int> before(to.size() + 1), last(to.size() + 1), row(to.size() + 1);
  for (std::size_t j = 0; j <= to.size(); ++j) row[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= from.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const int change = last[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, change});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[to.size()];
}

std::optional<int> nearness(std::string_view written, std::string_view known) {
  if (written.size() > kLongestName) return {};
  const int distance = edit_distance(written, known);
  const auto longer = static_cast<int>(std::max(written.size(), known.size()));
  if (distance * 3 <= longer) return distance;
  if (stands_for(known, written) || stands_for(written, known)) return kWordCost;
  return {};
}

std::optional<std::string_view> nearest(std::string_view written,
                                        std::span<const std::string_view> known) {
  std::optional<std::string_view> best;
  int best_distance = 0;
  for (const std::string_view name : known) {
    const auto distance = nearness(written, name);
    if (!distance || (best && *distance >= best_distance)) continue;
    best = name;
    best_distance = *distance;
  }
  return best;
}

std::optional<std::string_view> nearest_key(std::string_view name) {
  const auto dot = name.find('.');
  const std::string_view section = dot == name.npos ? "" : name.substr(0, dot);
  const std::string_view last_name = dot == name.npos ? name : name.substr(dot + 1);
  std::optional<std::string_view> best;
  int best_distance = 0;
  for (const Key& key : keys()) {
    const auto of_name = nearness(last_name, key.last_name());
    if (!of_name) continue;
    const auto of_section = nearness(section, key.section());
    if (!of_section && *of_name > 0) continue;
    const int distance = *of_name + of_section.value_or(kOtherSectionCost);
    if (best && distance >= best_distance) continue;
    best = key.name;
    best_distance = distance;
  }
  return best;
}

}  // namespace trireme::config
