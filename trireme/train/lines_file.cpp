#include "trireme/train/lines_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>

#include "trireme/core/error.h"
#include "trireme/core/json.h"

namespace trireme::train {

namespace {

/// The lines of steps up to `step`, and the last step among them.
std::string lines_to_keep(const std::string& path, int64_t step, int64_t& last) {
  std::ifstream in(path, std::ios::binary);
  std::string kept;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const auto json = core::Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    const auto its = json["step"].get<int64_t>();
    if (its > step) continue;
    kept += line + "\n";
    last = std::max(last, its);
  }
  return kept;
}

std::string steps_text(int64_t first, int64_t last) {
  return first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last);
}

bool write_all(int fd, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t wrote = ::write(fd, text.data() + at, text.size() - at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    at += static_cast<std::size_t>(wrote);
  }
  return true;
}

}  // namespace

LinesFile::LinesFile(std::string path, int64_t step, Tell tell, int64_t most_waiting)
    : path_(std::move(path)), tell_(std::move(tell)), most_waiting_(most_waiting) {
  int64_t last = 0;
  const std::string kept = step > 0 ? lines_to_keep(path_, step, last) : "";
  // Write a new file, then rename it: a kill in between must not lose the lines.
  const std::string fresh = path_ + ".new";
  file_ = net::Fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file_ || !write_all(file_.get(), kept) || std::rename(fresh.c_str(), path_.c_str()) != 0)
    throw Error(fmt::format("cannot write {}: {}", path_, core::errno_text(errno)));
  bytes_ = static_cast<int64_t>(kept.size());
  if (last > 0 && last < step)
    tell_(fmt::format("{} has no lines of {}", path_, steps_text(last + 1, step)));
}

LinesFile::~LinesFile() {
  if (flush() || waiting_.empty()) return;
  if (first_missing_ == 0) last_missing_ = waiting_.back().step;
  first_missing_ = waiting_.front().step;
  tell_(fmt::format("{} could not be written to the end; {}", path_, missing()));
}

std::string LinesFile::missing() const {
  return first_missing_ == 0 ? "nothing is missing"
                             : "it has no lines of " + steps_text(first_missing_, last_missing_);
}

bool LinesFile::flush() {
  while (!waiting_.empty()) {
    const std::string& line = waiting_.front().line;
    if (!write_all(file_.get(), line)) {
      const int reason = errno;
      if (::ftruncate(file_.get(), bytes_) == 0) ::lseek(file_.get(), bytes_, SEEK_SET);
      errno = reason;
      return false;
    }
    bytes_ += static_cast<int64_t>(line.size());
    waiting_bytes_ -= static_cast<int64_t>(line.size());
    waiting_.pop_front();
  }
  return true;
}

void LinesFile::add(int64_t step, const std::string& line) {
  struct stat status {};
  if (!removed_ && ::fstat(file_.get(), &status) == 0 && status.st_nlink == 0) {
    removed_ = true;
    tell_(fmt::format("{} was removed; the run goes on, but lines from step {} on are lost", path_,
                      step));
  }
  const auto size = static_cast<int64_t>(line.size()) + 1;
  flush();  // there may be room again
  // The newest lines are the ones that are dropped, so that what is missing is one range.
  if (!waiting_.empty() && (waiting_bytes_ + size > most_waiting_ || first_missing_ != 0)) {
    if (first_missing_ == 0) first_missing_ = step;
    last_missing_ = step;
  } else {
    waiting_.push_back({step, line + "\n"});
    waiting_bytes_ += size;
  }
  if (flush()) {
    if (told_) tell_(fmt::format("{} is written again; {}", path_, missing()));
    told_ = false;
    first_missing_ = last_missing_ = 0;
  } else if (!told_) {
    told_ = true;
    tell_(fmt::format("cannot write {}: {}; its lines wait in memory until there is room", path_,
                      core::errno_text(errno)));
  }
}

}  // namespace trireme::train
