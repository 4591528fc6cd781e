#include "trireme/train/run_folder.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "trireme/core/error.h"
#include "trireme/format/folder.h"

namespace trireme::train {

void make_folders(const std::string& path) {
  try {
    format::make_folders(path);
  } catch (const CheckpointError& error) {
    throw ConfigError(fmt::format("the run's folder: {}", error.what()));
  }
  if (::access(path.c_str(), W_OK) != 0)
    throw ConfigError(
        fmt::format("the run's folder: cannot write in {}: {}", path, core::errno_text(errno)));
}

RunFolder::RunFolder(const std::string& path) : lock_(nullptr, std::fclose) {
  make_folders(path);
  const std::string file = path + "/lock";
  lock_.reset(std::fopen(file.c_str(), "a+e"));
  if (!lock_)
    throw ConfigError(
        fmt::format("the run's folder: cannot write {}: {}", file, core::errno_text(errno)));
  const int fd = ::fileno(lock_.get());
  // A run that was killed a moment ago may not have ended yet.
  bool is_free = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  for (int i = 0; i < 40 && !is_free; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    is_free = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  }
  if (!is_free) {
    char holder[32] = "?";
    std::rewind(lock_.get());
    if (std::fgets(holder, sizeof holder, lock_.get()) == nullptr) holder[0] = '?';
    throw ConfigError(
        fmt::format("{} is in use by another run (rank 0 is pid {}); choose another folder "
                    "(run.dir), or stop it",
                    path, std::atol(holder)));
  }
  if (::ftruncate(fd, 0) == 0) fmt::print(lock_.get(), "{}\n", ::getpid());
  std::fflush(lock_.get());
}

}  // namespace trireme::train
