// Normalisation form C, in Unicode's three steps:
//
//   text          decompose           order marks by class      compose with the last starter
//   U+1E69 ...    s  .below  .above   s  .below  .above         U+1E63 .above -> U+1E69
//
// Marks have a combining class over 0; what has class 0 is a starter. A mark is blocked from the
// starter by one of the same or a higher class between them. Hangul syllables are computed.
#include "trireme/format/bpe/nfc.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "trireme/format/bpe/nfc_tables.h"
#include "trireme/format/bpe/unicode.h"

namespace trireme::format {

namespace {

// Syllable = kSyllables + (lead x kVowels + vowel) x kTails + tail.
constexpr uint32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;
constexpr uint32_t kNumLeads = 19, kNumVowels = 21, kNumTails = 28;

/// No character below takes part in normalisation.
constexpr uint32_t kFirstThatChanges = 0x300;

struct Marked {
  uint32_t code;
  uint8_t combining;
};

uint8_t combining_of(uint32_t code) {
  if (code < kFirstThatChanges) return 0;
  const auto after = std::ranges::upper_bound(kCombining, code, {}, &CombiningRange::first);
  if (after == kCombining.begin() || std::prev(after)->last < code) return 0;
  return std::prev(after)->combining;
}

void decompose(uint32_t code, std::vector<Marked>& to) {
  if (code >= kSyllables && code < kSyllables + kNumLeads * kNumVowels * kNumTails) {
    const uint32_t index = code - kSyllables, tail = index % kNumTails;
    to.push_back({kLeads + index / (kNumVowels * kNumTails), 0});
    to.push_back({kVowels + index / kNumTails % kNumVowels, 0});
    if (tail != 0) to.push_back({kTails + tail, 0});
    return;
  }
  const auto found = std::ranges::lower_bound(kDecompositions, code, {}, &Decomposition::code);
  if (found == kDecompositions.end() || found->code != code)
    return to.push_back({code, combining_of(code)});
  decompose(found->first, to);
  if (found->second != 0) decompose(found->second, to);
}

/// The character that two become, or 0.
uint32_t composed(uint32_t first, uint32_t second) {
  if (first >= kLeads && first < kLeads + kNumLeads && second >= kVowels &&
      second < kVowels + kNumVowels)
    return kSyllables + ((first - kLeads) * kNumVowels + second - kVowels) * kNumTails;
  const bool is_syllable =
      first >= kSyllables && first < kSyllables + kNumLeads * kNumVowels * kNumTails;
  if (is_syllable && (first - kSyllables) % kNumTails == 0 && second > kTails &&
      second < kTails + kNumTails)
    return first + second - kTails;
  static const auto pairs = [] {
    std::unordered_map<uint64_t, uint32_t> all;
    for (const Decomposition& each : kDecompositions)
      if (each.composes) all.emplace(uint64_t{each.first} << 32 | each.second, each.code);
    return all;
  }();
  const auto found = pairs.find(uint64_t{first} << 32 | second);
  return found == pairs.end() ? 0 : found->second;
}

void order_marks(std::vector<Marked>& text) {
  for (auto next = text.begin(); next != text.end();) {
    const auto is_mark = [](const Marked& each) { return each.combining != 0; };
    const auto begin = std::find_if(next, text.end(), is_mark);
    next = std::find_if_not(begin, text.end(), is_mark);
    std::stable_sort(begin, next,
                     [](const Marked& a, const Marked& b) { return a.combining < b.combining; });
  }
}

void compose(std::vector<Marked>& text) {
  size_t kept = 0, starter = text.size();
  int last = -1;  // the class of what was kept after the starter; -1: nothing was
  for (size_t i = 0; i < text.size(); ++i) {
    const Marked next = text[i];
    const bool has_starter = starter < kept;
    if (has_starter && last < int{next.combining}) {
      if (const uint32_t both = composed(text[starter].code, next.code); both != 0) {
        text[starter].code = both;
        continue;
      }
    }
    if (next.combining == 0) {
      starter = kept;
      last = -1;
    } else {
      last = next.combining;
    }
    text[kept++] = next;
  }
  text.resize(kept);
}

void normalise(std::vector<Marked>& run, std::string& to) {
  order_marks(run);
  compose(run);
  for (const Marked& each : run) append_utf8(each.code, to);
  run.clear();
}

}  // namespace

bool surely_nfc(std::string_view text) {
  // U+0300 is CC 80.
  return std::ranges::all_of(text, [](const unsigned char byte) { return byte < 0xCC; });
}

std::string to_nfc(std::string_view text) {
  std::string all;
  all.reserve(text.size());
  std::vector<Marked> run;
  for (size_t at = 0; at < text.size();) {
    const Char c = char_at(text, at);
    if (c.code == kNotText) {
      normalise(run, all);
      all += text[at];
    } else {
      decompose(c.code, run);
    }
    at += c.bytes;
  }
  normalise(run, all);
  return all;
}

}  // namespace trireme::format
