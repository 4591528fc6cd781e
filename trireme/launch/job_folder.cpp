#include "trireme/launch/job_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

#include "trireme/core/error.h"
#include "trireme/launch/environment.h"
#include "trireme/net/socket.h"

namespace trireme::launch {

namespace {

namespace fs = std::filesystem;

/// How long a manager may take to die whose launcher was killed, and a launcher to clean up.
constexpr std::chrono::seconds kLockPatience{2};
constexpr std::chrono::milliseconds kLookAgain{10};

constexpr const char* kLockName = "/job.lock";
constexpr std::array kFiles{"/secret",           "/manager.log",     "/manager.log.new",
                            "/manager.log.lock", "/manager.address", "/manager.address.new"};

void remove_quietly(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

/// The lock of a folder, if nobody has it. A file that its holder has removed meanwhile is none:
/// another job may have locked the one that took its place.
net::Fd try_lock(const std::string& folder) {
  const std::string path = folder + kLockName;
  net::Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file && errno != ENOENT)
    throw Error(fmt::format("cannot write '{}': {}", path, core::errno_text(errno)));
  if (!file || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return {};
  struct stat locked {
  }, there{};
  const bool is_there = ::fstat(file.get(), &locked) == 0 && ::stat(path.c_str(), &there) == 0 &&
                        locked.st_ino == there.st_ino;
  return is_there ? std::move(file) : net::Fd();
}

/// By whoever holds the lock, which goes last. A folder in which others have files stays.
void remove_job(const std::string& folder) {
  for (const char* name : kFiles) remove_quietly(folder + name);
  remove_quietly(folder + kLockName);
  ::rmdir(folder.c_str());
}

}  // namespace

JobFolder::JobFolder(const std::string& where) : where_(where) {
  is_folder_ = where.find("://") == where.npos;
  is_temporary_ = where.empty();
  std::error_code ignored;
  if (is_temporary_)
    where_ =
        fmt::format("{}/trireme-{}", fs::temp_directory_path(ignored).string(), random_run_id());
  else if (is_folder_)
    where_ = fs::absolute(where);
}

JobFolder::~JobFolder() {
  if (!lock_) return;
  if (is_temporary_)
    remove_quietly(where_);
  else
    remove_job(where_);
}

std::function<void()> JobFolder::remover() const {
  if (!is_folder_) return {};
  if (is_temporary_) return [folder = where_] { remove_quietly(folder); };
  return [folder = where_] {
    try {
      // The kernel may still be closing what the launcher had open.
      const auto until = net::Clock::now() + kLockPatience;
      net::Fd lock;
      while (!(lock = try_lock(folder)) && fs::exists(folder) && net::Clock::now() < until)
        std::this_thread::sleep_for(kLookAgain);
      if (lock) remove_job(folder);
    } catch (const std::exception&) {  // nobody would hear of it
    }
  };
}

void JobFolder::make(const std::string& secret) {
  if (!is_folder_) return;
  net::Fd lock = make_and_lock();
  forget_earlier_job();
  lock_ = std::move(lock);  // from now on what is there is ours
  if (secret.empty()) return;
  const std::string path = where_ + "/secret";
  const net::Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file ||
      ::write(file.get(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size()))
    throw Error(fmt::format("cannot write '{}': {}", path, core::errno_text(errno)));
}

/// The folder goes when the job goes that has it now: then it is made anew.
net::Fd JobFolder::make_and_lock() const {
  std::error_code ignored;
  if (!is_temporary_) fs::create_directories(fs::path(where_).parent_path(), ignored);
  for (const auto until = net::Clock::now() + kLockPatience;;) {
    if (::mkdir(where_.c_str(), 0700) != 0 && (is_temporary_ || errno != EEXIST))
      throw Error(fmt::format("cannot make '{}', the manager's folder: {}", where_,
                              core::errno_text(errno)));
    if (net::Fd lock = try_lock(where_)) return lock;
    if (net::Clock::now() > until)
      throw Error(fmt::format("another job runs in '{}': end it, or use another folder", where_));
    std::this_thread::sleep_for(kLookAgain);
  }
}

/// The manager of a launcher that was killed may be dying still, and hold its log.
void JobFolder::forget_earlier_job() const {
  const std::string path = where_ + "/manager.log.lock";
  const net::Fd lock(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  const auto until = net::Clock::now() + kLockPatience;
  while (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (net::Clock::now() > until)
      throw Error(fmt::format(
          "another job runs in '{}': its manager holds {}; end it, or use another folder", where_,
          path));
    std::this_thread::sleep_for(kLookAgain);
  }
  for (const char* name : kFiles) remove_quietly(where_ + name);
}

}  // namespace trireme::launch
