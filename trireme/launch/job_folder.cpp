#include "trireme/launch/job_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

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

/// How long a manager may take to die whose launcher was killed.
constexpr std::chrono::seconds kLockPatience{2};

void remove_quietly(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
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
  if (is_ours_) remove_quietly(leftover());
}

std::string JobFolder::leftover() const {
  if (!is_folder_) return {};
  return is_temporary_ ? where_ : where_ + "/secret";
}

void JobFolder::make(const std::string& secret) {
  if (!is_folder_) return;
  std::error_code error;
  if (!is_temporary_) fs::create_directories(fs::path(where_).parent_path(), error);
  if (::mkdir(where_.c_str(), 0700) != 0 && (is_temporary_ || errno != EEXIST))
    throw Error(
        fmt::format("cannot make '{}', the manager's folder: {}", where_, core::errno_text(errno)));
  forget_earlier_job();
  is_ours_ = true;
  if (secret.empty()) return;
  const std::string path = where_ + "/secret";
  const net::Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file ||
      ::write(file.get(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size()))
    throw Error(fmt::format("cannot write '{}': {}", path, core::errno_text(errno)));
}

/// While it holds the manager's lock: no manager of another job loses its files.
void JobFolder::forget_earlier_job() const {
  const std::string path = where_ + "/manager.log.lock";
  const net::Fd lock(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  const auto until = net::Clock::now() + kLockPatience;
  while (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (net::Clock::now() > until)
      throw Error(
          fmt::format("another job runs in '{}': its manager holds {}; end it, or use "
                      "another folder",
                      where_, path));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  for (const char* name :
       {"/manager.log", "/manager.log.new", "/manager.address", "/manager.address.new", "/secret"})
    remove_quietly(where_ + name);
}

}  // namespace trireme::launch
