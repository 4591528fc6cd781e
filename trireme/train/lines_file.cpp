#include "trireme/train/lines_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "trireme/core/error.h"
#include "trireme/core/json.h"

namespace trireme::train {

namespace {

/// The lines of steps up to `step`.
std::string lines_to_keep(const std::string& path, int64_t step) {
  std::ifstream in(path, std::ios::binary);
  std::string kept;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const auto json = core::Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    if (json["step"].get<int64_t>() <= step) kept += line + "\n";
  }
  return kept;
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

LinesFile::LinesFile(std::string path, int64_t step) : path_(std::move(path)) {
  const std::string kept = step > 0 ? lines_to_keep(path_, step) : "";
  // Write a new file, then rename it: a kill in between must not lose the lines.
  const std::string fresh = path_ + ".new";
  file_ = net::Fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file_ || !write_all(file_.get(), kept) || std::rename(fresh.c_str(), path_.c_str()) != 0)
    throw Error(fmt::format("cannot write {}: {}", path_, core::errno_text(errno)));
  bytes_ = static_cast<int64_t>(kept.size());
}

void LinesFile::add(const std::string& line) {
  if (write_all(file_.get(), line + "\n")) {
    bytes_ += static_cast<int64_t>(line.size()) + 1;
  } else if (::ftruncate(file_.get(), bytes_) == 0) {  // no half lines
    ::lseek(file_.get(), bytes_, SEEK_SET);
  }
}

}  // namespace trireme::train
