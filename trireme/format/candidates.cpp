#include "trireme/format/candidates.h"

#include <fmt/format.h>

#include "trireme/core/error.h"
#include "trireme/format/folder.h"
#include "trireme/format/verify.h"

namespace trireme::format {

Candidates::Candidates(std::string folder, Warn warn)
    : folder_(std::move(folder)), warn_(std::move(warn)), steps_(list(folder_)) {
  for (const std::string& path : list_unfinished(folder_))
    warn_(
        fmt::format("{} is passed over: it has no {}, so it was never finished", path, kIndexName));
}

std::string Candidates::next(std::optional<Checkpoint>& opened) {
  while (!steps_.empty()) {
    const std::string path = folder_ + "/" + step_name(steps_.back());
    try {
      opened.emplace(path);
      if (const auto wrong = wrong_name(path, opened->index().step)) {
        pass_over(*wrong);
        continue;
      }
      const auto missing = find_missing(path, opened->index());
      if (missing.empty()) return path;
      pass_over(missing.front().sentence);
    } catch (const UnreadableError&) {
      throw;
    } catch (const CheckpointError& error) {
      pass_over(error.what());
    }
  }
  opened.reset();
  if (damaged_.empty()) return "";
  throw CheckpointError(
      fmt::format("none of the {} checkpoints in {} is whole ({}); remove them to start over",
                  damaged_.size(), folder_, first_));
}

void Candidates::pass_over(const std::string& sentence) {
  warn_(fmt::format("{}/{} is damaged and passed over: {}", folder_, step_name(steps_.back()),
                    sentence));
  if (first_.empty()) first_ = sentence;
  damaged_.push_back(steps_.back());
  steps_.pop_back();
}

void Candidates::put_damaged_aside() const {
  try {
    for (const int64_t step : damaged_) put_aside(folder_, step);
  } catch (const CheckpointError& error) {
    warn_(error.what());
  }
}

UnreadableError unreadable_just_now(const std::string& why) {
  return UnreadableError(why +
                         "; this may pass, so nothing was put aside: fix the cause and start "
                         "again, or move the step's folder away to continue from the one before");
}

std::string newest_whole(const std::string& folder, Candidates::Warn warn) {
  try {
    Candidates candidates(folder, std::move(warn));
    for (std::optional<Checkpoint> opened;;) {
      const std::string path = candidates.next(opened);
      if (path.empty()) return path;
      const auto damage = find_damage(path);
      if (!damage.empty()) {
        candidates.pass_over(damage.front().sentence);
        continue;
      }
      candidates.put_damaged_aside();
      return path;
    }
  } catch (const UnreadableError& error) {
    throw unreadable_just_now(error.what());
  }
}

}  // namespace trireme::format
