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
#include "trireme/format/file.h"
#include "trireme/format/index.h"

namespace trireme::format {

namespace {

[[noreturn]] void cannot(const char* verb, const std::string& path) {
  throw CheckpointError(fmt::format("cannot {} {}: {}", verb, path, core::errno_text(errno)));
}

bool is_folder(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

/// The names in a folder; none if it is not there.
std::vector<std::string> names_in(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(folder.c_str()), ::closedir);
  if (!stream && errno != ENOENT) cannot("list", folder);
  std::vector<std::string> names;
  while (const dirent* entry = stream ? ::readdir(stream.get()) : nullptr)
    if (const std::string name = entry->d_name; name != "." && name != "..") names.push_back(name);
  return names;
}

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) cannot("open", path);
  const int result = ::fsync(fd), reason = errno;
  ::close(fd);
  errno = reason;
  if (result != 0) cannot("write", path);
}

bool is_root(const std::string& path) {
  struct stat here {};
  struct stat above {};
  if (::stat(path.c_str(), &here) != 0 || ::stat((path + "/..").c_str(), &above) != 0) return true;
  return here.st_ino == above.st_ino && here.st_dev == above.st_dev;
}

/// Syncs the folder and those above it, since whoever made them may not have done so. Stops at a
/// folder that cannot be opened: this run did not make it.
void sync_upwards(std::string path) {
  for (sync_folder(path); !is_root(path);) {
    path += "/..";
    const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    ::fsync(fd);
    ::close(fd);
  }
}

bool is_there(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

/// Removes what a successor has replaced. Where that fails, remove_leftovers() removes it later.
void try_remove(const std::string& path) {
  try {
    remove_all(path);
  } catch (const CheckpointError&) {
  }
}

/// "step-00000500" -> 500, and nothing for any other name.
std::optional<int64_t> parse_step(const std::string& name) {
  if (!name.starts_with("step-")) return std::nullopt;
  const auto step = core::parse_int(name.substr(5));
  return step && *step >= 0 && step_name(*step) == name ? step : std::nullopt;
}

/// Whether the folder has an index, and so is whole. Throws where that cannot be told just now.
bool has_index(const std::string& folder) {
  const std::string path = folder + "/" + kIndexName;
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return S_ISREG(status.st_mode);
  if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return false;
  throw UnreadableError(fmt::format("cannot open {}: {}", path, core::errno_text(errno)));
}

std::string path_of(const std::string& folder, int64_t step) {
  return folder + "/" + step_name(step);
}

constexpr const char* kAside = ".tmp-old";

/// Puts `ready` where an older checkpoint is. The two swap names in one call, so that one of them
/// is there at every instant. Where the file system cannot swap, the older one is renamed first.
void replace(const std::string& ready, const std::string& path) {
  if (::renameat2(AT_FDCWD, ready.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return;
  const std::string aside = path + kAside;
  remove_all(aside);
  if (::rename(path.c_str(), aside.c_str()) != 0) cannot("rename", path);
  if (::rename(ready.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    ::rename(aside.c_str(), path.c_str());
    errno = reason;
    cannot("rename", ready);
  }
}

}  // namespace

void remove_all(const std::string& path) {
  if (is_folder(path)) {
    for (const std::string& name : names_in(path)) remove_all(path + "/" + name);
    if (::rmdir(path.c_str()) != 0 && errno != ENOENT) cannot("remove", path);
  } else if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    cannot("remove", path);
  }
}

std::string step_name(int64_t step) {
  return fmt::format("step-{:08}", step);
}

std::optional<std::string> wrong_name(const std::string& path, int64_t step) {
  const size_t end = path.find_last_not_of('/') + 1;
  const size_t slash = path.find_last_of('/', end == 0 ? 0 : end - 1);
  const size_t begin = slash == path.npos ? 0 : slash + 1;
  const auto named = parse_step(path.substr(begin, end - begin));
  if (!named || *named == step) return std::nullopt;
  return fmt::format("{} is named as step {}, but holds step {}", path, *named, step);
}

std::vector<int64_t> list(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(folder))
    if (const auto step = parse_step(name); step && has_index(path_of(folder, *step)))
      steps.push_back(*step);
  std::ranges::sort(steps);
  return steps;
}

std::vector<std::string> list_unfinished(const std::string& folder) {
  std::vector<std::string> paths;
  for (const std::string& name : names_in(folder))
    if (const std::string path = folder + "/" + name;
        parse_step(name) && is_folder(path) && !has_index(path))
      paths.push_back(path);
  std::ranges::sort(paths);
  return paths;
}

void make_folders(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), 0777) == 0)
      sync_folder(part + "/..");
    else if (errno != EEXIST)
      cannot("create", part);
    if (end == path.npos) return;
  }
}

std::string begin(const std::string& folder, int64_t step) {
  core::check(step >= 0, "a checkpoint cannot have the negative step {}", step);
  make_folders(folder);
  const std::string path = path_of(folder, step) + ".tmp";
  if (is_there(path))
    sync_folder(folder);  // it may be an older checkpoint that a commit has swapped out
  remove_all(path);
  if (::mkdir(path.c_str(), 0755) != 0) cannot("create", path);
  return path;
}

std::string commit(const std::string& folder, int64_t step) {
  const std::string path = path_of(folder, step), ready = path + ".tmp";
  if (!is_file(ready + "/" + kIndexName))
    throw CheckpointError(fmt::format("{} has no {}: it is not finished", ready, kIndexName));
  sync_folder(ready);
  if (::rename(ready.c_str(), path.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) cannot("rename", ready);
    replace(ready, path);
  }
  sync_upwards(folder);
  // The older one goes only now that the new one is on the disk.
  try_remove(ready);
  try_remove(path + kAside);
  return path;
}

std::vector<int64_t> prune(const std::string& folder, int64_t keep, std::optional<int64_t> spared) {
  core::check(keep >= 1, "prune must keep at least 1 checkpoint, not {}", keep);
  std::vector<int64_t> steps = list(folder);
  steps.resize(std::max<size_t>(steps.size(), static_cast<size_t>(keep)) -
               static_cast<size_t>(keep));
  if (spared) std::erase(steps, *spared);
  for (const int64_t step : steps) {
    const std::string path = path_of(folder, step), doomed = path + ".tmp-pruned";
    remove_all(doomed);
    if (::rename(path.c_str(), doomed.c_str()) != 0) cannot("rename", path);
    sync_folder(folder);  // so that no crash brings back a half-removed step under its name
    remove_all(doomed);
  }
  return steps;
}

void remove_leftovers(const std::string& folder) {
  std::vector<std::string> left;
  for (const std::string& name : names_in(folder)) {
    const size_t end = name.find(".tmp");
    if (end == name.npos || !parse_step(name.substr(0, end))) continue;
    const std::string path = folder + "/" + name, place = folder + "/" + name.substr(0, end);
    if (name.substr(end) != kAside || is_there(place))
      left.push_back(path);
    else if (::rename(path.c_str(), place.c_str()) != 0)
      cannot("rename", path);
  }
  if (!left.empty())
    sync_folder(folder);  // the successor must be on the disk before these are removed
  for (const std::string& path : left) remove_all(path);
}

std::string put_aside(const std::string& folder, int64_t step) {
  const std::string path = path_of(folder, step);
  std::string aside = path + ".damaged";
  for (int again = 2; is_there(aside); ++again) aside = fmt::format("{}.damaged-{}", path, again);
  if (::rename(path.c_str(), aside.c_str()) != 0) cannot("rename", path);
  sync_folder(folder);
  return aside;
}

std::string begin_beside(const std::string& path) {
  if (is_there(path))
    throw ConfigError(fmt::format("'{}' is there already; name another, or remove it", path));
  const std::string beside = path + ".tmp";
  if (is_there(beside))
    throw ConfigError(fmt::format(
        "'{}' is there already: somebody is writing it, or was interrupted; if so, remove it",
        beside));
  if (const size_t end = path.rfind('/'); end != path.npos && end > 0)
    make_folders(path.substr(0, end));
  if (::mkdir(beside.c_str(), 0755) != 0) cannot("create", beside);
  return beside;
}

void commit_beside(const std::string& path) {
  const std::string beside = path + ".tmp";
  sync_folder(beside);
  // A plain rename would replace an empty folder that was made in the meantime.
  if (::renameat2(AT_FDCWD, beside.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) != 0 &&
      (errno != EINVAL || is_there(path) || ::rename(beside.c_str(), path.c_str()) != 0))
    cannot("rename", beside);
  sync_upwards(path + "/..");
}

void abandon_beside(const std::string& path) {
  try_remove(path + ".tmp");
}

}  // namespace trireme::format
