#include "trireme/format/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "trireme/core/error.h"
#include "trireme/core/units.h"

namespace trireme::format {

namespace {

/// Linux moves at most 2 GiB a call; a quarter of that keeps offsets round.
constexpr int64_t kMostPerCall = core::kGiB / 2;

[[noreturn]] void fail(const char* verb, const std::string& path, int reason) {
  throw CheckpointError(fmt::format("cannot {} {}: {}", verb, path, core::errno_text(reason)));
}

/// A file that is not there is damage; anything else says nothing about what it holds.
[[noreturn]] void fail_to_read(const char* verb, const std::string& path, int reason) {
  if (reason == ENOENT || reason == ENOTDIR || reason == ELOOP) fail(verb, path, reason);
  throw UnreadableError(fmt::format("cannot {} {}: {}", verb, path, core::errno_text(reason)));
}

}  // namespace

File File::open(const std::string& path) {
  // Non-blocking: a pipe in the place of a file must not make us wait for its writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail_to_read("open", path, errno);
  File file(path, fd);
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_to_read("open", path, errno);
  if (!S_ISREG(status.st_mode)) throw CheckpointError(fmt::format("{} is not a file", path));
  return file;
}

File File::create(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) fail("create", path, errno);
  return File(path, fd);
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

int64_t File::bytes() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) fail_to_read("read", path_, errno);
  return status.st_size;
}

void File::read(int64_t offset, int64_t bytes, void* to, std::string_view what) const {
  auto* place = static_cast<char*>(to);
  while (bytes > 0) {
    const auto part = static_cast<size_t>(std::min(bytes, kMostPerCall));
    const ssize_t got = ::pread(fd_, place, part, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw UnreadableError(
          fmt::format("cannot read {} ({}): {}", path_, what, core::errno_text(errno)));
    if (got == 0)
      throw CheckpointError(
          fmt::format("{} ends at byte {}, {} bytes before the end of {}: it was cut off", path_,
                      offset, bytes, what));
    place += got;
    offset += got;
    bytes -= got;
  }
}

void File::write(const void* from, int64_t bytes) {
  const auto* place = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = ::write(fd_, place, static_cast<size_t>(std::min(bytes, kMostPerCall)));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EINVAL && leave_direct()) continue;  // the disk wants another alignment
    if (put < 0) fail("write", path_, errno);
    place += put;
    bytes -= put;
  }
}

/// Turns O_DIRECT off; false if it was off already.
bool File::leave_direct() {
  const int flags = ::fcntl(fd_, F_GETFL);
  if (flags < 0 || (flags & O_DIRECT) == 0) return false;
  return ::fcntl(fd_, F_SETFL, flags & ~O_DIRECT) == 0;
}

bool File::set_direct(bool direct) {
  const int flags = ::fcntl(fd_, F_GETFL);
  if (flags < 0) return false;
  return ::fcntl(fd_, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0 && direct;
}

void File::finish() {
  if (::fsync(fd_) != 0) fail("write", path_, errno);
  if (::close(std::exchange(fd_, -1)) != 0) fail("write", path_, errno);
}

bool is_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

std::string read_file(const std::string& path, int64_t most_bytes) {
  const File file = File::open(path);
  const int64_t bytes = file.bytes();
  if (bytes > most_bytes)
    throw CheckpointError(fmt::format("{} has {}, more than the limit of {}", path,
                                      core::format_bytes(bytes), core::format_bytes(most_bytes)));
  std::string text(static_cast<size_t>(bytes), '\0');
  file.read(0, bytes, text.data(), "its text");
  return text;
}

void write_file(const std::string& path, std::string_view text) {
  File file = File::create(path);
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.finish();
}

}  // namespace trireme::format
