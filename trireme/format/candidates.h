#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/format/load.h"

namespace trireme::format {

/// The checkpoints of a folder, newest first, for whoever continues from the newest that is whole.
///
///     step-3 cut off       step-2 a flipped bit       step-1 whole
///     `next` passes over   the caller finds it,       `put_damaged_aside`: 3 and 2 become
///                          and passes over            step-N.damaged
class Candidates {
 public:
  using Warn = std::function<void(const std::string& sentence)>;
  Candidates(std::string folder, Warn warn);

  /// Opens the next that is not visibly incomplete and returns its path; "" if there are no more.
  /// Throws CheckpointError if there were only damaged ones.
  std::string next(std::optional<Checkpoint>& opened);
  /// The one that `next` returned is damaged.
  void pass_over(const std::string& sentence);
  /// Called when one was found whole: the damaged ones must not count among those that are kept,
  /// nor be resumed from later.
  void put_damaged_aside() const;

 private:
  std::string folder_, first_;
  Warn warn_;
  std::vector<int64_t> steps_, damaged_;
};

/// Nothing says that this checkpoint is damaged: to pass it over would cost the steps since the one
/// before. So this is the error of who wanted to continue from it.
UnreadableError unreadable_just_now(const std::string& why);

/// The path of the newest checkpoint that is whole to its last byte: reads it all. "" if there is
/// none at all.
std::string newest_whole(const std::string& folder, Candidates::Warn warn);

}  // namespace trireme::format
