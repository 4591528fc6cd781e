#include "support/faulty_disk.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

template <class F>
F* real(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}
#define REAL(name)                                            \
  (*[] {                                                      \
    static auto* const found = real<decltype(::name)>(#name); \
    return found;                                             \
  }())

std::string read_all(const std::string& path) {
  std::string bytes;
  const int fd = REAL(open)(path.c_str(), O_RDONLY | O_CLOEXEC);
  char part[1 << 16];
  for (ssize_t got; fd >= 0 && (got = ::read(fd, part, sizeof part)) > 0;)
    bytes.append(part, static_cast<size_t>(got));
  if (fd >= 0) REAL(close)(fd);
  return bytes;
}

void write_all(const std::string& path, const std::string& bytes) {
  const int fd = REAL(open)(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  for (size_t done = 0; fd >= 0 && done < bytes.size();)
    done += static_cast<size_t>(REAL(write)(fd, bytes.data() + done, bytes.size() - done));
  if (fd >= 0) REAL(close)(fd);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  DIR* stream = ::opendir(folder.c_str());
  while (const dirent* entry = stream != nullptr ? ::readdir(stream) : nullptr)
    if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0)
      names.emplace_back(entry->d_name);
  if (stream != nullptr) ::closedir(stream);
  return names;
}

bool is_folder(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

void clear(const std::string& folder) {
  for (const std::string& name : names_in(folder)) {
    const std::string path = folder + "/" + name;
    if (is_folder(path)) {
      clear(path);
      REAL(rmdir)(path.c_str());
    } else {
      REAL(unlink)(path.c_str());
    }
  }
}

/// What would be left if power went now: a tree of its own beside the real one, which changes only
/// when something is fsynced.
class Platter {
 public:
  void remember_all(const std::string& path) {
    const int id = id_of(path);
    if (!is_folder(path)) {
      objects_[id].bytes = read_all(path);
      return;
    }
    for (const std::string& name : names_in(path)) {
      remember_all(path + "/" + name);
      objects_[id].names[name] = id_of(path + "/" + name);
    }
  }

  /// A file or a folder that was just made: its inode's number may have been another's.
  void forget(const std::string& path) { ids_.erase(inode_of(path)); }

  void sync(const std::string& path) {
    Object& object = objects_[id_of(path)];
    if (!is_folder(path)) {
      object.bytes = read_all(path);
      return;
    }
    object.names.clear();
    for (const std::string& name : names_in(path)) object.names[name] = id_of(path + "/" + name);
  }

  /// The real folder becomes what is left; `removed_too`: without what was removed.
  void lose(const std::string& folder, bool removed_too) {
    std::set<int> alive;
    collect(folder, alive);
    const int root = id_of(folder);
    clear(folder);
    rebuild(folder, root, removed_too ? &alive : nullptr);
  }

  /// All names stay; of bytes that were not fsynced the second half is zeros.
  void tear(const std::string& path) {
    if (is_folder(path)) {
      for (const std::string& name : names_in(path)) tear(path + "/" + name);
      return;
    }
    std::string bytes = read_all(path);
    const std::string& synced = objects_[id_of(path)].bytes;
    if (bytes == synced) return;
    const size_t known = bytes.starts_with(synced) ? synced.size() : 0;
    for (size_t i = known + (bytes.size() - known) / 2; i < bytes.size(); ++i) bytes[i] = '\0';
    write_all(path, bytes);
  }

 private:
  struct Object {
    std::string bytes;
    std::map<std::string, int> names;
    bool folder = false;
  };
  using Inode = std::pair<dev_t, ino_t>;

  static Inode inode_of(const std::string& path) {
    struct stat status {};
    ::lstat(path.c_str(), &status);
    return {status.st_dev, status.st_ino};
  }

  int id_of(const std::string& path) {
    const auto [found, added] = ids_.try_emplace(inode_of(path), next_);
    if (added) objects_[next_++].folder = is_folder(path);
    return found->second;
  }

  void collect(const std::string& path, std::set<int>& alive) {
    alive.insert(id_of(path));
    if (is_folder(path))
      for (const std::string& name : names_in(path)) collect(path + "/" + name, alive);
  }

  void rebuild(const std::string& path, int id, const std::set<int>* alive) {
    for (const auto& [name, child] : objects_[id].names) {
      if (alive != nullptr && !alive->contains(child)) continue;
      const std::string place = path + "/" + name;
      if (!objects_[child].folder) {
        write_all(place, objects_[child].bytes);
      } else {
        REAL(mkdir)(place.c_str(), 0755);
        rebuild(place, child, alive);
      }
    }
  }

  std::map<Inode, int> ids_;
  std::map<int, Object> objects_;
  int next_ = 0;
};

/// What an operation shall do instead.
struct Verdict {
  int error = 0;
  bool halfway = false;
};

class Disk {
 public:
  std::recursive_mutex mutex;
  Platter platter;

  void arm(const std::string& how, int at, const std::string& folder, const char* log) {
    const std::lock_guard lock(mutex);
    platter = {};
    platter.remember_all(folder);
    how_ = how;
    at_ = at;
    folder_ = folder;
    count_ = 0;
    if (log != nullptr) log_ = REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  }
  void disarm() {
    const std::lock_guard lock(mutex);
    folder_.clear();
    paths_.clear();
  }
  int count() const { return count_; }
  int delay_of(const std::string& path) const {
    return how_ == "slow" && path.find("part-00001") != path.npos ? at_ : 0;
  }

  bool watches(const char* path) const {
    return !folder_.empty() && std::strncmp(path, folder_.c_str(), folder_.size()) == 0 &&
           std::strstr(path, "/..") == nullptr;
  }
  const std::string* path_of(int fd) const {
    const auto found = paths_.find(fd);
    return found == paths_.end() ? nullptr : &found->second;
  }
  void opened(int fd, const char* path) { paths_[fd] = path; }
  void closed(int fd) { paths_.erase(fd); }

  /// One more operation. `changes`: it would change something; `grows`: it needs room.
  Verdict next(const char* what, const std::string& path, bool changes, bool grows) {
    ++count_;
    if (log_ >= 0) ::dprintf(log_, "%s %s\n", what, path.c_str());
    if (at_ == 0 || count_ < at_ || how_ == "slow") return {};
    const bool now = count_ == at_;
    if (how_ == "eio" && now) return {EIO};
    if (how_ == "enospc" && grows) return {ENOSPC, now};
    if (how_ == "erofs" && changes) return {EROFS};
    if (how_ == "torn") platter.tear(folder_);
    if (how_ == "lost" || how_ == "removed") platter.lose(folder_, how_ == "removed");
    // Whoever else wants to write waits for the mutex, and goes with us.
    if (how_ == "torn" || how_ == "lost" || how_ == "removed") ::_exit(trireme::test::kPowerLost);
    return {};
  }

 private:
  std::string how_, folder_;
  int at_ = 0, count_ = 0, log_ = -1;
  std::map<int, std::string> paths_;
};

Disk& disk() {
  static Disk* const one = [] {
    auto* made = new Disk;  // outlives whoever closes a file at exit
    if (const char* said = std::getenv("FAULTY_DISK"); said != nullptr) {
      char how[16] = "", folder[4096] = "";
      int at = 0;
      if (std::sscanf(said, "%15s %d %4095s", how, &at, folder) == 3)
        made->arm(how, at, folder, std::getenv("FAULTY_DISK_LOG"));
    }
    return made;
  }();
  return *one;
}

int fail(int error) {
  errno = error;
  return -1;
}

int open_as(const char* path, int flags, mode_t mode) {
  Disk& the = disk();
  const std::lock_guard lock(the.mutex);
  if (!the.watches(path)) return REAL(open)(path, flags, mode);
  const bool creates = (flags & O_CREAT) != 0;
  struct stat status {};
  const bool fresh = creates && ::lstat(path, &status) != 0;
  const Verdict verdict = the.next(creates ? "create" : "open", path, creates, false);
  if (verdict.error != 0) return fail(verdict.error);
  const int fd = REAL(open)(path, flags, mode);
  if (fd >= 0 && (creates || (flags & O_DIRECTORY) != 0)) the.opened(fd, path);
  if (fd >= 0 && fresh) the.platter.forget(path);
  return fd;
}

int sync_as(int fd, int (*sync)(int)) {
  Disk& the = disk();
  std::unique_lock lock(the.mutex);
  const std::string* path = the.path_of(fd);
  if (path == nullptr) return sync(fd);
  if (const int milliseconds = the.delay_of(*path); milliseconds > 0) {
    lock.unlock();  // others go on meanwhile
    ::usleep(static_cast<useconds_t>(milliseconds) * 1000);
    return sync(fd);
  }
  const Verdict verdict = the.next("fsync", *path, true, false);
  if (verdict.error != 0) return fail(verdict.error);
  // A folder that was renamed since it was opened keeps its inode: ask the descriptor.
  char now[4096] = "";
  const ssize_t length =
      ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), now, sizeof now - 1);
  the.platter.sync(length > 0 ? std::string(now, static_cast<size_t>(length)) : *path);
  return 0;
}

int rename_as(const char* from, const char* to, const auto& rename) {
  Disk& the = disk();
  const std::lock_guard lock(the.mutex);
  if (!the.watches(from)) return rename();
  const Verdict verdict = the.next("rename", std::string(from) + " " + to, true, false);
  return verdict.error != 0 ? fail(verdict.error) : rename();
}

int remove_as(const char* what, const char* path, int (*remove)(const char*)) {
  Disk& the = disk();
  const std::lock_guard lock(the.mutex);
  if (!the.watches(path)) return remove(path);
  struct stat status {};
  if (::lstat(path, &status) != 0) return remove(path);  // changes nothing
  const Verdict verdict = the.next(what, path, true, false);
  return verdict.error != 0 ? fail(verdict.error) : remove(path);
}

mode_t mode_in(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

}  // namespace

extern "C" {

void faulty_disk_arm(const char* how, int at, const char* folder, const char* log) {
  disk().arm(how, at, folder, log);
}
void faulty_disk_disarm() {
  disk().disarm();
}
int faulty_disk_count() {
  return disk().count();
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  return open_as(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  return open_as(path, flags, mode);
}

ssize_t write(int fd, const void* from, size_t bytes) {
  Disk& the = disk();
  std::unique_lock lock(the.mutex);
  const std::string* path = the.path_of(fd);
  if (path == nullptr) {
    lock.unlock();  // a pipe may take its time
    return REAL(write)(fd, from, bytes);
  }
  const Verdict verdict = the.next("write", *path, true, true);
  if (verdict.halfway) return REAL(write)(fd, from, bytes / 2);
  return verdict.error != 0 ? fail(verdict.error) : REAL(write)(fd, from, bytes);
}

int fsync(int fd) {
  return sync_as(fd, REAL(fsync));
}
int fdatasync(int fd) {
  return sync_as(fd, REAL(fdatasync));
}

int close(int fd) {
  Disk& the = disk();
  const std::lock_guard lock(the.mutex);
  const std::string* path = the.path_of(fd);
  if (path == nullptr) return REAL(close)(fd);
  const Verdict verdict = the.next("close", *path, false, false);
  the.closed(fd);
  const int result = REAL(close)(fd);  // the descriptor goes, whatever close says
  return verdict.error != 0 ? fail(verdict.error) : result;
}

int rename(const char* from, const char* to) {
  return rename_as(from, to, [&] { return REAL(rename)(from, to); });
}
int renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned int flags) {
  return rename_as(from, to, [&] { return REAL(renameat2)(from_fd, from, to_fd, to, flags); });
}

int mkdir(const char* path, mode_t mode) {
  Disk& the = disk();
  const std::lock_guard lock(the.mutex);
  struct stat status {};
  if (!the.watches(path) || ::lstat(path, &status) == 0) return REAL(mkdir)(path, mode);
  const Verdict verdict = the.next("mkdir", path, true, true);
  if (verdict.error != 0) return fail(verdict.error);
  const int result = REAL(mkdir)(path, mode);
  if (result == 0) the.platter.forget(path);
  return result;
}

int unlink(const char* path) {
  return remove_as("unlink", path, REAL(unlink));
}
int rmdir(const char* path) {
  return remove_as("rmdir", path, REAL(rmdir));
}

}  // extern "C"
