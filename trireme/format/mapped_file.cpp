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
  ::close(fd);
  if (!regular) throw Error(fmt::format("{} is not a file", path));
  if (status.st_size == 0) throw Error(fmt::format("{} is empty", path));
  if (place == MAP_FAILED)
    throw Error(fmt::format("cannot map {}: {}", path, core::errno_text(reason)));
  data_ = static_cast<const char*>(place);
  bytes_ = status.st_size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), static_cast<size_t>(bytes_));
}

}  // namespace trireme::format
