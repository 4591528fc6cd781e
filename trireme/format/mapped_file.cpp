#include "trireme/format/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "trireme/core/error.h"

namespace trireme::format {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw Error(fmt::format("cannot open {}: {}", path, core::errno_text(errno)));
  struct stat status {};
  const bool regular = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  void* place = MAP_FAILED;
  if (regular && status.st_size > 0)
    place = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, fd, 0);
  const int reason = errno;
  if (place == MAP_FAILED) ::close(fd);
  if (!regular) throw Error(fmt::format("{} is not a file", path));
  if (status.st_size == 0) throw Error(fmt::format("{} is empty", path));
  if (place == MAP_FAILED)
    throw Error(fmt::format("cannot map {}: {}", path, core::errno_text(reason)));
  fd_ = fd;
  data_ = static_cast<const char*>(place);
  bytes_ = status.st_size;
}

MappedFile::~MappedFile() {
  if (fd_ >= 0) ::close(fd_);
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), static_cast<size_t>(bytes_));
}

void MappedFile::check_whole() const {
  struct stat status {};
  if (::fstat(fd_, &status) == 0 && status.st_size < bytes_)
    throw Error(fmt::format("{} was cut off while it was in use: it had {} bytes and has {} now",
                            path_, bytes_, status.st_size));
}

}  // namespace trireme::format
