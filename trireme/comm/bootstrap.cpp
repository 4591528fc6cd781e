#include "trireme/comm/bootstrap.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/core/json.h"
#include "trireme/core/units.h"

namespace trireme::comm {

namespace {

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

std::string link_target(const char* path) {
  char target[256];
  const ssize_t length = ::readlink(path, target, sizeof target);
  return length < 0 ? "" : std::string(target, static_cast<std::size_t>(length));
}

std::string to_text(const Entry& entry) {
  return core::Json{{"host", entry.host}, {"host_key", entry.host_key}, {"pid", entry.pid},
                    {"born", entry.born}, {"segments", entry.segments}, {"address", entry.address}}
      .dump();
}

Entry from_text(const std::string& text) {
  const core::Json json = core::parse_json(text, "a rank's entry in the store");
  return {json.at("host"), json.at("host_key"), json.at("pid"),
          json.at("born"), json.at("segments"), json.at("address")};
}

}  // namespace

std::vector<std::string> exchange(const Bootstrap& bootstrap, const std::string& what,
                                  const std::string& mine) {
  const auto key = [&](int rank) { return fmt::format("{}/{}", what, rank); };
  // The process id makes it this process's own, so that a second one of the same rank shows.
  const std::string text = fmt::format("{} {}\n{}", host_name(), ::getpid(), mine);
  const std::string there =
      bootstrap.store.compare_and_set(key(bootstrap.rank), "", text, bootstrap.deadline);
  if (there != text) {
    const std::string who = there.substr(0, there.find('\n'));
    throw CommError(
        fmt::format("rank {} of job '{}' is taken: host {}, pid {} came first; every rank must be "
                    "started once, "
                    "with a number of its own",
                    bootstrap.rank, bootstrap.job, who.substr(0, who.rfind(' ')),
                    who.substr(who.rfind(' ') + 1)));
  }
  const auto began = net::Clock::now();
  std::vector<std::string> all;
  for (int rank = 0; rank < bootstrap.size; ++rank) {
    try {
      const std::string text_of = bootstrap.store.wait(key(rank), bootstrap.deadline);
      all.push_back(text_of.substr(text_of.find('\n') + 1));
    } catch (const TimeoutError&) {
      std::vector<int> missing;
      for (int other = rank; other < bootstrap.size; ++other) {
        const auto soon = net::Clock::now() + std::chrono::seconds(1);
        if (!bootstrap.store.get(key(other), soon)) missing.push_back(other);
      }
      throw TimeoutError(fmt::format(
          "rank{} {} of {} never came to job '{}' (rank {} waited {}); were all ranks started?",
          missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), bootstrap.size, bootstrap.job,
          bootstrap.rank, core::format_duration(net::Clock::now() - began)));
    }
  }
  return all;
}

std::vector<Entry> exchange_entries(const Bootstrap& bootstrap, const Entry& mine) {
  std::vector<Entry> entries;
  for (const std::string& text : exchange(bootstrap, "rank", to_text(mine)))
    entries.push_back(from_text(text));
  return entries;
}

std::vector<Member> members_of(const std::vector<Entry>& entries) {
  std::vector<std::string> hosts;
  std::vector<Member> members;
  for (const Entry& entry : entries) {
    auto host = std::find(hosts.begin(), hosts.end(), entry.host_key);
    if (host == hosts.end()) host = hosts.insert(hosts.end(), entry.host_key);
    members.push_back({entry.host, entry.pid, static_cast<int>(host - hosts.begin())});
  }
  return members;
}

std::string host_name() {
  char name[256] = "?";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string host_key() {
  if (const auto group = core::env("GROUP_RANK")) return "group " + *group;
  return first_line("/proc/sys/kernel/random/boot_id") + " " + link_target("/proc/self/ns/net") +
         " " + link_target("/proc/self/ns/pid");
}

uint64_t process_born(int64_t pid) {
  std::string line = first_line(fmt::format("/proc/{}/stat", pid));
  // The name, in parentheses, may hold anything; 20 fields after it comes the start time.
  const auto name_end = line.rfind(')');
  if (name_end == line.npos) return 0;
  std::istringstream rest(line.substr(name_end + 2));
  std::string field;
  for (int i = 0; i < 20; ++i) rest >> field;
  return static_cast<uint64_t>(core::parse_int(field).value_or(0));
}

}  // namespace trireme::comm
