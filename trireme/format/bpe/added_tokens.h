#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme::format {

/// A token that is not made by merging: text that spells it becomes it, whatever stands around.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool normalized = false;              ///< looked for after normalisation, not before
  bool lstrip = false, rstrip = false;  ///< takes the white space before, or after
};

/// Finds added tokens in a text, from the left, the longest that begins at a place.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Found {
    const AddedToken* token;  ///< nullptr: no more
    size_t begin, end;        ///< what it takes
    size_t after;             ///< where the search goes on
  };
  /// The first one from `from` on. White space before `taken` belongs to the one before.
  Found find(std::string_view text, size_t from, size_t taken) const;

 private:
  size_t next_start(std::string_view text, size_t from) const;
  const AddedToken* longest_at(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<uint64_t, uint32_t> children_;  // node << 8 | byte -> node
  std::vector<int32_t> ends_;                        // node -> index into tokens_, or -1
  std::string firsts_;                               // the bytes that tokens begin with
};

}  // namespace trireme::format
