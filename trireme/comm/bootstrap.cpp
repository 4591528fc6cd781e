#include "trireme/comm/bootstrap.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <span>
#include <sstream>

#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/core/json.h"
#include "trireme/core/log.h"
#include "trireme/core/units.h"

namespace trireme::comm {

namespace {

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

std::string to_text(const RankEntry& entry) {
  return core::Json{{"host", entry.host},         {"host_key", entry.host_key},
                    {"pid", entry.pid},           {"born", entry.born},
                    {"segments", entry.segments}, {"address", entry.address},
                    {"wants", entry.wants},       {"gpu", entry.gpu}}
      .dump();
}

RankEntry from_text(const std::string& text) {
  const core::Json json = core::parse_json(text, "a rank's entry in the store");
  return {json.at("host"),     json.at("host_key"), json.at("pid"),   json.at("born"),
          json.at("segments"), json.at("address"),  json.at("wants"), json.at("gpu")};
}

constexpr auto kSilence = std::chrono::seconds(5);  // then rank 0 names the missing ranks

/// Begins a sentence that another rank wrote into a missing rank's entry.
constexpr char kGaveUp = '!';

/// Another process has this rank: throws who, and what to do about it.
[[noreturn]] void refuse_taken(const Bootstrap& bootstrap, const std::string& there) {
  if (there[0] == kGaveUp) throw TimeoutError(there.substr(1));
  const std::string who = there.substr(0, there.find('\n'));
  const std::string host = who.substr(0, who.rfind(' '));
  const auto pid = core::parse_int(who.substr(who.rfind(' ') + 1)).value_or(0);
  if (host == host_name() && process_born(pid) == 0)
    throw CommError(
        fmt::format("rank {} of job '{}' is taken by pid {} of this host, which has ended; if its "
                    "job is over, remove {}",
                    bootstrap.rank, bootstrap.job, pid, bootstrap.place));
  throw CommError(
      fmt::format("rank {} of job '{}' is taken: host {}, pid {} came first; every rank must be "
                  "started once, with a "
                  "number of its own",
                  bootstrap.rank, bootstrap.job, host, pid));
}

std::string key_of(int rank) {
  return fmt::format("rank/{}", rank);
}

/// The ranks that have no entry yet. Throws the sentence of a rank that has given up.
std::vector<int> missing_ranks(const Bootstrap& bootstrap, net::Deadline deadline) {
  std::vector<int> missing;
  for (int rank = 0; rank < bootstrap.size; ++rank) {
    const auto there = bootstrap.store.get(key_of(rank), deadline);
    if (there && (*there)[0] == kGaveUp) throw TimeoutError(there->substr(1));
    if (!there) missing.push_back(rank);
  }
  return missing;
}

std::string name_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 16;
  const std::span<const int> some(ranks.data(), std::min(ranks.size(), kMost));
  return fmt::format("rank{} {}{} of", ranks.size() == 1 ? "" : "s", fmt::join(some, ", "),
                     ranks.size() > kMost ? fmt::format(" and {} more", ranks.size() - kMost) : "");
}

/// Throws an error that names the missing ranks, and writes it into their entries, so that every
/// rank that waits for them throws the same error at once.
[[noreturn]] void give_up(const Bootstrap& bootstrap, std::chrono::nanoseconds waited) {
  const auto soon = net::Clock::now() + std::chrono::seconds(5);  // after the deadline, once
  const std::vector<int> missing = missing_ranks(bootstrap, soon);
  std::string sentence =
      fmt::format("{} {} never joined job '{}' (rank {} waited {})", name_ranks(missing),
                  bootstrap.size, bootstrap.job, bootstrap.rank, core::format_duration(waited));
  const auto refused = bootstrap.store.get(net::kTurnedAwayKey, soon);
  if (refused)
    sentence += "; the store refused: " + refused->substr(0, refused->find('\n'));
  else
    sentence += "; were all ranks started, or is one stopped?";
  for (int rank : missing)
    bootstrap.store.compare_and_set(key_of(rank), "", kGaveUp + sentence, soon);
  throw TimeoutError(sentence);
}

/// Returns the entries of all ranks as text.
std::vector<std::string> wait_for_all(const Bootstrap& bootstrap) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < bootstrap.size; ++rank) keys.push_back(key_of(rank));
  const auto began = net::Clock::now();
  for (;;) {
    const auto next = bootstrap.rank == 0 ? net::Clock::now() + kSilence : bootstrap.deadline;
    try {
      return bootstrap.store.wait_all(keys, std::min(next, bootstrap.deadline));
    } catch (const TimeoutError&) {
      const auto waited = net::Clock::now() - began;
      if (net::Clock::now() >= bootstrap.deadline) give_up(bootstrap, waited);
      const auto missing = missing_ranks(bootstrap, bootstrap.deadline);
      if (missing.empty()) continue;
      core::Log(bootstrap.rank, "world")
          .warning(fmt::format("waiting for {} {} to join job '{}', {} so far", name_ranks(missing),
                               bootstrap.size, bootstrap.job, core::format_duration(waited)));
    }
  }
}

}  // namespace

std::vector<RankEntry> exchange_entries(const Bootstrap& bootstrap, const RankEntry& mine) {
  // Host and process id make the text unique, so that a second process of this rank is noticed.
  const std::string text = fmt::format("{} {}\n{}", host_name(), ::getpid(), to_text(mine));
  const std::string there =
      bootstrap.store.compare_and_set(key_of(bootstrap.rank), "", text, bootstrap.deadline);
  if (there != text) refuse_taken(bootstrap, there);
  std::vector<RankEntry> entries;
  for (const std::string& other : wait_for_all(bootstrap)) {
    if (other[0] == kGaveUp) throw TimeoutError(other.substr(1));
    entries.push_back(from_text(other.substr(other.find('\n') + 1)));
  }
  return entries;
}

std::vector<Member> members_of(const std::vector<RankEntry>& entries) {
  std::vector<std::string> hosts;
  std::vector<Member> members;
  for (const RankEntry& entry : entries) {
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

uint64_t process_born(int64_t pid) {
  std::string line = first_line(fmt::format("/proc/{}/stat", pid));
  // The name, in parentheses, may contain anything; the start time is the 20th field after it.
  const auto name_end = line.rfind(')');
  if (name_end == line.npos) return 0;
  std::istringstream rest(line.substr(name_end + 2));
  std::string field;
  rest >> field;
  if (field == "Z" || field == "X") return 0;  // dead, but not reaped yet
  for (int i = 1; i < 20; ++i) rest >> field;
  return static_cast<uint64_t>(core::parse_int(field).value_or(0));
}

}  // namespace trireme::comm
