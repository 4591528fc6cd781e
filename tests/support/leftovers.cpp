#include "support/leftovers.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "support/command.h"

namespace trireme::test {

namespace {

namespace fs = std::filesystem;

constexpr const char* kMark = "TRIREME_TEST_MARK";
constexpr const char* kListenState = "0A";

std::string target_of(const fs::path& link) {
  std::error_code gone;
  return fs::read_symlink(link, gone).string();
}

std::vector<int> all_pids() {
  std::vector<int> pids;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") == name.npos) pids.push_back(std::stoi(name));
  }
  return pids;
}

std::string line_of(int pid, const char* file) {
  std::ifstream stream("/proc/" + std::to_string(pid) + "/" + file);
  std::string line;
  std::getline(stream, line);
  return line;
}

int parent_of(int pid) {
  const std::string stat = line_of(pid, "stat");
  const auto name_end = stat.rfind(')');
  if (name_end == stat.npos) return 0;
  char state = 0;
  int parent = 0;
  std::istringstream(stat.substr(name_end + 1)) >> state >> parent;
  return parent;
}

/// "4711" for "socket:[4711]".
std::set<std::string> socket_inodes_of(int pid) {
  std::set<std::string> inodes;
  std::error_code gone;
  for (fs::directory_iterator entry("/proc/" + std::to_string(pid) + "/fd", gone), end;
       !gone && entry != end; entry.increment(gone)) {
    const std::string target = target_of(entry->path());
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

/// The inode and what to call it, of each listening tcp socket of our network namespace.
std::map<std::string, std::string> tcp_listeners() {
  std::map<std::string, std::string> found;
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream stream(file);
    std::string line;
    std::getline(stream, line);
    while (std::getline(stream, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, queues, timer, retries, user, timeout, inode;
      words >> slot >> local >> remote >> state >> queues >> timer >> retries >> user >> timeout >>
          inode;
      if (state == kListenState) found[inode] = local;
    }
  }
  return found;
}

/// The inode and the name of each unix socket that has one beginning with @trireme-.
std::map<std::string, std::string> abstract_sockets() {
  std::map<std::string, std::string> found;
  std::ifstream stream("/proc/net/unix");
  std::string line;
  while (std::getline(stream, line)) {
    std::istringstream words(line);
    std::string number, references, protocol, flags, type, state, inode, name;
    words >> number >> references >> protocol >> flags >> type >> state >> inode >> name;
    if (name.starts_with("@trireme-")) found[inode] = name;
  }
  return found;
}

std::set<std::string> names_of(const std::map<std::string, std::string>& sockets) {
  std::set<std::string> names;
  for (const auto& [inode, name] : sockets) names.insert(name);
  return names;
}

std::set<std::string> shared_files() {
  std::set<std::string> files;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("/dev/shm", none)) files.insert(entry.path());
  return files;
}

bool uses(int pid, const std::string& file) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(file) != line.npos) return true;
  }
  return false;
}

}  // namespace

Leftovers::Leftovers()
    : mark_(unique_marker()),
      names_before_(names_of(abstract_sockets())),
      files_before_(shared_files()) {
  if (const char* outer = ::getenv(kMark)) outer_mark_ = outer;
  // A rank runs the test up to its own part again: what it starts belongs to the test that started
  // it.
  if (::getenv("TRIREME_TEST_RANK") == nullptr) ::setenv(kMark, mark_.c_str(), 1);
}

Leftovers::~Leftovers() {
  if (outer_mark_.empty())
    ::unsetenv(kMark);
  else
    ::setenv(kMark, outer_mark_.c_str(), 1);
}

std::vector<std::string> Leftovers::now() const {
  // Other tests run beside this one, and make and remove theirs: what counts was there before all
  // processes were looked at, and is there after.
  const auto sockets = abstract_sockets();
  const auto files = shared_files();
  std::vector<std::string> found;
  std::set<int> ours;
  std::set<std::string> our_inodes, others_inodes;
  for (const pid_t pid : processes_with(kMark, mark_)) ours.insert(pid);
  ours.erase(::getpid());
  const std::vector<int> pids = all_pids();
  for (const int pid : pids) {
    if (parent_of(pid) == ::getpid()) ours.insert(pid);
  }
  for (const int pid : pids) {
    auto inodes = socket_inodes_of(pid);
    (ours.contains(pid) ? our_inodes : others_inodes).merge(inodes);
  }
  for (const int pid : ours)
    found.push_back("process " + std::to_string(pid) + ", " + line_of(pid, "comm") + ", parent " +
                    std::to_string(parent_of(pid)));
  for (const auto& [inode, address] : tcp_listeners()) {
    if (our_inodes.contains(inode)) found.push_back("tcp listener " + address);
  }
  const auto sockets_after = abstract_sockets();
  for (const auto& [inode, name] : sockets) {
    if (!sockets_after.contains(inode)) continue;
    const bool somebody_elses = others_inodes.contains(inode) && !our_inodes.contains(inode);
    if (!names_before_.contains(name) && !somebody_elses) found.push_back("unix socket " + name);
  }
  for (const std::string& file : files) {
    if (files_before_.contains(file)) continue;
    bool somebody_elses = false;
    for (const int pid : pids)
      somebody_elses |= !ours.contains(pid) && pid != ::getpid() && uses(pid, file);
    if (!somebody_elses && fs::exists(file)) found.push_back("file " + file);
  }
  return found;
}

void Leftovers::expect_none(std::chrono::milliseconds deadline) const {
  if (eventually([&] { return now().empty(); }, deadline)) return;
  std::string list;
  for (const std::string& line : now()) list += "\n  " + line;
  if (!list.empty()) ADD_FAILURE() << "this is left:" << list;
}

std::vector<int> tcp_listeners_of(int pid) {
  std::vector<int> ports;
  const auto inodes = socket_inodes_of(pid);
  for (const auto& [inode, address] : tcp_listeners()) {
    if (inodes.contains(inode))
      ports.push_back(std::stoi(address.substr(address.rfind(':') + 1), nullptr, 16));
  }
  return ports;
}

std::vector<std::string> abstract_names_of(int pid) {
  std::vector<std::string> names;
  const auto inodes = socket_inodes_of(pid);
  for (const auto& [inode, name] : abstract_sockets()) {
    if (inodes.contains(inode)) names.push_back(name);
  }
  return names;
}

}  // namespace trireme::test
