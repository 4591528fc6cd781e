#include "trireme/comm/bootstrap.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
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

namespace {

constexpr char kGaveUp = '!';  // before a sentence that somebody left where a rank should have come

/// Somebody else is this rank: says who, and what to do about it.
[[noreturn]] void refuse_taken(const Bootstrap& bootstrap, const std::string& there) {
  if (there[0] == kGaveUp) throw TimeoutError(there.substr(1));
  const std::string who = there.substr(0, there.find('\n'));
  const std::string host = who.substr(0, who.rfind(' '));
  const auto pid = core::parse_int(who.substr(who.rfind(' ') + 1)).value_or(0);
  if (host == host_name() && process_born(pid) == 0)
    throw CommError(
        fmt::format("rank {} of job '{}' is taken by pid {} of this host, which is gone; if its "
                    "job is over, remove {}",
                    bootstrap.rank, bootstrap.job, pid, bootstrap.place));
  throw CommError(
      fmt::format("rank {} of job '{}' is taken: host {}, pid {} came first; every rank must be "
                  "started once, with a "
                  "number of its own",
                  bootstrap.rank, bootstrap.job, host, pid));
}

/// Names the ranks that are not there, and leaves the sentence in their places: whoever waits for
/// them says the same, at once.
[[noreturn]] void give_up(const Bootstrap& bootstrap, const std::function<std::string(int)>& key,
                          std::chrono::nanoseconds waited) {
  const auto soon = net::Clock::now() + std::chrono::seconds(1);
  std::vector<int> missing;
  for (int rank = 0; rank < bootstrap.size; ++rank) {
    const auto there = bootstrap.store.get(key(rank), soon);
    if (there && (*there)[0] == kGaveUp)
      throw TimeoutError(there->substr(1));  // somebody was faster
    if (!there) missing.push_back(rank);
  }
  const std::string sentence = fmt::format(
      "rank{} {} of {} never came to job '{}' (rank {} waited {}); were all ranks started?",
      missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), bootstrap.size, bootstrap.job,
      bootstrap.rank, core::format_duration(waited));
  for (int rank : missing) bootstrap.store.compare_and_set(key(rank), "", kGaveUp + sentence, soon);
  throw TimeoutError(sentence);
}

}  // namespace

std::vector<std::string> exchange(const Bootstrap& bootstrap, const std::string& what,
                                  const std::string& mine) {
  const auto key = [&](int rank) { return fmt::format("{}/{}", what, rank); };
  // The process id makes it this process's own, so that a second one of the same rank shows.
  const std::string text = fmt::format("{} {}\n{}", host_name(), ::getpid(), mine);
  const std::string there =
      bootstrap.store.compare_and_set(key(bootstrap.rank), "", text, bootstrap.deadline);
  if (there != text) refuse_taken(bootstrap, there);
  const auto began = net::Clock::now();
  std::vector<std::string> all;
  for (int rank = 0; rank < bootstrap.size; ++rank) {
    std::string other;
    try {
      other = bootstrap.store.wait(key(rank), bootstrap.deadline);
    } catch (const TimeoutError&) {
      give_up(bootstrap, key, net::Clock::now() - began);
    }
    if (other[0] == kGaveUp) throw TimeoutError(other.substr(1));
    all.push_back(other.substr(other.find('\n') + 1));
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
  rest >> field;
  if (field == "Z" || field == "X") return 0;  // dead, and only not yet reaped
  for (int i = 1; i < 20; ++i) rest >> field;
  return static_cast<uint64_t>(core::parse_int(field).value_or(0));
}

}  // namespace trireme::comm
