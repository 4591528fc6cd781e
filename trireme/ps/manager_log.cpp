#include "trireme/ps/manager_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include "trireme/core/error.h"
#include "trireme/format/file.h"
#include "trireme/format/folder.h"
#include "trireme/net/socket.h"

namespace trireme::ps {

namespace {

constexpr int64_t kMostBytes = int64_t{1} << 40;
constexpr std::chrono::seconds kLockPatience{5};

[[noreturn]] void fail(const char* what, const std::string& path) {
  throw CheckpointError(fmt::format("cannot {} {}: {}", what, path, core::errno_text(errno)));
}

net::Fd open_for_appending(const std::string& path) {
  net::Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!fd) fail("open", path);
  return fd;
}

/// A new name is on the disk when its folder is.
void sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  const net::Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) fail("sync", folder);
}

void write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

/// The lock is a file of its own, because the log is replaced by renaming.
class LogFile final : public ManagerLog {
 public:
  explicit LogFile(std::string path) : path_(std::move(path)) {
    format::make_folders(std::filesystem::path(path_).parent_path());
    lock_ = open_for_appending(path_ + ".lock");
    take_lock();
    log_ = open_for_appending(path_);
    sync_folder_of(path_);
  }

  std::string read() override { return format::read_file(path_, kMostBytes); }
  void append(std::string_view record) override { write_all(log_.get(), record, path_); }
  void sync() override {
    if (::fdatasync(log_.get()) != 0) fail("sync", path_);
  }
  void replace(std::string_view log) override {
    const std::string beside = path_ + ".new";
    format::write_file(beside, log);
    if (::rename(beside.c_str(), path_.c_str()) != 0) fail("rename", beside);
    sync_folder_of(path_);
    log_ = open_for_appending(path_);
  }

 private:
  void take_lock() {
    const auto until = net::Clock::now() + kLockPatience;
    while (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) fail("lock", path_);
      if (net::Clock::now() >= until)
        throw CheckpointError(fmt::format(
            "another manager of this job is running: it holds {}.lock; end it, or use another "
            "folder",
            path_));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  std::string path_;
  net::Fd lock_, log_;
};

}  // namespace

std::unique_ptr<ManagerLog> open_log_file(const std::string& path) {
  return std::make_unique<LogFile>(path);
}

}  // namespace trireme::ps
