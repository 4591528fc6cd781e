#include "trireme/net/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>

#include "trireme/core/error.h"
#include "trireme/core/units.h"

namespace trireme::net {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void refuse(const char* what, std::size_t bytes) {
  throw CommError(fmt::format(
      "{} {} of shared memory: {}; free some, raise the limit (ulimit -v, the cgroup), or use tcp, "
      "which shares none (TRIREME_BACKEND=tcp)",
      what, core::format_bytes(static_cast<int64_t>(bytes)), core::errno_text(errno)));
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_target(const char* path) {
  std::array<char, 256> target;
  const ssize_t length = ::readlink(path, target.data(), target.size());
  return length < 0 ? std::string() : std::string(target.data(), static_cast<std::size_t>(length));
}

}  // namespace

Fd make_shared_memory(std::size_t bytes) {
  Fd fd(::memfd_create("trireme", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    refuse("cannot make", bytes);
  return fd;
}

void check_shared_memory(int fd, std::size_t bytes) {
  struct stat info {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (::fstat(fd, &info) != 0 || info.st_size != static_cast<off_t>(bytes) || seals < 0 ||
      (seals & kSeals) != kSeals)
    throw CommError(
        fmt::format("received a segment of {} bytes (seals {:#x}) instead of one of {} bytes that "
                    "cannot change its size; do all processes run the same build?",
                    info.st_size, seals, bytes));
}

std::shared_ptr<std::byte> map_shared_memory(int fd, std::size_t bytes, Access access) {
  const int protection = access == Access::Read ? PROT_READ : PROT_READ | PROT_WRITE;
  void* base = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) refuse("cannot map", bytes);
  return {static_cast<std::byte*>(base), [bytes](std::byte* memory) { ::munmap(memory, bytes); }};
}

std::string host_key() {
  return first_line("/proc/sys/kernel/random/boot_id") + " " + link_target("/proc/self/ns/net") +
         " " + link_target("/proc/self/ns/pid");
}

}  // namespace trireme::net
