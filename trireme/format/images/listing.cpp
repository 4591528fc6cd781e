#include "trireme/format/images/listing.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "trireme/core/error.h"

namespace trireme::format {

bool is_directory(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

Listing list_directory(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(path.c_str()), ::closedir);
  if (!stream) throw Error(fmt::format("cannot list {}: {}", path, core::errno_text(errno)));
  Listing all;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name.starts_with('.')) continue;
    // Most file systems say what an entry is; the others, and links, have to be asked.
    const bool is_folder = entry->d_type == DT_UNKNOWN || entry->d_type == DT_LNK
                               ? is_directory(path + '/' + name)
                               : entry->d_type == DT_DIR;
    (is_folder ? all.folders : all.files).push_back(name);
  }
  std::ranges::sort(all.files);
  std::ranges::sort(all.folders);
  return all;
}

}  // namespace trireme::format
