#include "trireme/format/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>

#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/format/index.h"

namespace trireme::format {

namespace {

[[noreturn]] void fail(const char* verb, const std::string& path) {
  throw CheckpointError(fmt::format("cannot {} {}: {}", verb, path, core::errno_text(errno)));
}

bool is_folder(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

bool is_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

/// The names in a folder; none if it is not there.
std::vector<std::string> names_in(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(folder.c_str()), ::closedir);
  if (!stream && errno != ENOENT) fail("list", folder);
  std::vector<std::string> names;
  while (const dirent* entry = stream ? ::readdir(stream.get()) : nullptr)
    if (const std::string name = entry->d_name; name != "." && name != "..") names.push_back(name);
  return names;
}

/// Removes a file or a folder with all in it; follows no link.
void remove_all(const std::string& path) {
  if (is_folder(path)) {
    for (const std::string& name : names_in(path)) remove_all(path + "/" + name);
    if (::rmdir(path.c_str()) != 0 && errno != ENOENT) fail("remove", path);
  } else if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    fail("remove", path);
  }
}

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail("open", path);
  const int result = ::fsync(fd);
  ::close(fd);
  if (result != 0) fail("write", path);
}

/// Makes a folder and those above it, each of them on the disk before the next.
void make_folders(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), 0755) == 0)
      sync_folder(part + "/..");
    else if (errno != EEXIST)
      fail("create", part);
    if (end == path.npos) return;
  }
}

/// "step-00000500" -> 500, and nothing for any other name.
std::optional<int64_t> parse_step(const std::string& name) {
  if (!name.starts_with("step-")) return std::nullopt;
  const auto step = core::parse_int(name.substr(5));
  return step && *step >= 0 && step_name(*step) == name ? step : std::nullopt;
}

std::string path_of(const std::string& folder, int64_t step) {
  return folder + "/" + step_name(step);
}

}  // namespace

std::string step_name(int64_t step) {
  return fmt::format("step-{:08}", step);
}

std::vector<int64_t> list(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(folder))
    if (const auto step = parse_step(name); step && is_file(path_of(folder, *step) + "/index.json"))
      steps.push_back(*step);
  std::ranges::sort(steps);
  return steps;
}

std::string begin(const std::string& folder, int64_t step) {
  core::check(step >= 0, "a checkpoint of step {} cannot be", step);
  make_folders(folder);
  const std::string path = path_of(folder, step) + ".tmp";
  remove_all(path);
  if (::mkdir(path.c_str(), 0755) != 0) fail("create", path);
  return path;
}

std::string commit(const std::string& folder, int64_t step) {
  const std::string path = path_of(folder, step), ready = path + ".tmp";
  if (!is_file(ready + "/" + kIndexName))
    throw CheckpointError(fmt::format("{} has no {}: it is not finished", ready, kIndexName));
  sync_folder(ready);
  if (::rename(ready.c_str(), path.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) fail("rename", ready);
    // An older one is there: the two change places, so that at no instant there is none. Where
    // the file system cannot do that, the older one steps aside first.
    if (::renameat2(AT_FDCWD, ready.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) != 0) {
      const std::string aside = path + ".tmp-old";
      remove_all(aside);
      if (::rename(path.c_str(), aside.c_str()) != 0) fail("rename", path);
      if (::rename(ready.c_str(), path.c_str()) != 0) fail("rename", ready);
      remove_all(aside);
    }
  }
  sync_folder(folder);
  remove_all(ready);
  return path;
}

std::vector<int64_t> prune(const std::string& folder, int64_t keep) {
  core::check(keep >= 1, "prune must keep at least 1 checkpoint, not {}", keep);
  std::vector<int64_t> steps = list(folder);
  steps.resize(std::max<size_t>(steps.size(), static_cast<size_t>(keep)) -
               static_cast<size_t>(keep));
  for (const int64_t step : steps) {
    const std::string path = path_of(folder, step), doomed = path + ".tmp-pruned";
    remove_all(doomed);
    if (::rename(path.c_str(), doomed.c_str()) != 0) fail("rename", path);
    sync_folder(folder);  // no crash may bring back the name of a half-removed one
    remove_all(doomed);
  }
  return steps;
}

void remove_leftovers(const std::string& folder) {
  for (const std::string& name : names_in(folder)) {
    const size_t end = name.find(".tmp");
    if (end != name.npos && parse_step(name.substr(0, end))) remove_all(folder + "/" + name);
  }
}

}  // namespace trireme::format
