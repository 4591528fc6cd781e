#include "trireme/mesh/rendezvous.h"

#include <map>
#include <optional>
#include <vector>

#include "trireme/core/env.h"
#include "trireme/core/error.h"

namespace trireme {

namespace {

constexpr uint16_t kDefaultPort = 29500;
constexpr int64_t kMostRanks = 32767;

/// A launcher, recognised by the variables that it sets for rank and size.
struct Starter {
  const char *name, *rank, *size;
};
constexpr Starter kStarters[] = {
    {"RANK", "RANK", "WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS"},
};

void check_rank(int64_t rank, int64_t size, std::string_view where) {
  if (size < 1)
    throw ConfigError(
        fmt::format("{}: a world of {} ranks; there must be at least one", where, size));
  if (size > kMostRanks)
    throw ConfigError(
        fmt::format("{}: a world of {} ranks; it may have at most {}", where, size, kMostRanks));
  if (rank < 0 || rank >= size)
    throw ConfigError(fmt::format("{}: rank {} in a world of {}; ranks count from 0 to {}", where,
                                  rank, size, size - 1));
}

/// "rank=0&size=4"
std::map<std::string, std::string, std::less<>> parse_query(std::string_view query,
                                                            std::string_view url) {
  std::map<std::string, std::string, std::less<>> values;
  while (!query.empty()) {
    const auto end = query.find('&');
    const auto item = query.substr(0, end);
    const auto equals = item.find('=');
    const auto key = item.substr(0, equals);
    if (equals == item.npos || (key != "rank" && key != "size" && key != "job"))
      throw ConfigError(fmt::format("'{}' in '{}' is none of rank=, size= and job=", item, url));
    if (!values.emplace(key, item.substr(equals + 1)).second)
      throw ConfigError(fmt::format("'{}' says {}= twice", url, key));
    query = end == query.npos ? "" : query.substr(end + 1);
  }
  return values;
}

std::string job_name() {
  std::string job =
      core::env("TRIREME_JOB").value_or(core::env("TORCHELASTIC_RUN_ID").value_or("trireme"));
  // A restarted job must not meet the remains of the previous attempt.
  if (const auto restart = core::env_int("TORCHELASTIC_RESTART_COUNT"); restart && *restart > 0)
    job += fmt::format("/{}", *restart);
  return job;
}

Rendezvous from_environment() {
  Rendezvous found;
  found.job = job_name();
  for (const Starter& starter : kStarters) {
    const auto rank = core::env_int(starter.rank);
    if (!rank) continue;
    const auto size = core::env_int(starter.size);
    if (!size)
      throw ConfigError(
          fmt::format("{} is {}, but {} is not set", starter.rank, *rank, starter.size));
    check_rank(*rank, *size, starter.name);
    found.rank = static_cast<int>(*rank);
    found.size = static_cast<int>(*size);
    if (*size == 1) return found;
    auto port = core::env_int("MASTER_PORT").value_or(kDefaultPort);
    if (port < 1 || port > 65535)
      throw ConfigError(fmt::format("MASTER_PORT={} is not a port", port));
    found.kind = Rendezvous::Kind::Tcp;
    // torchrun's agent has its own store at MASTER_PORT: use the next port.
    if (core::env("TORCHELASTIC_USE_AGENT_STORE") == "True") port += port < 65535 ? 1 : -1;
    found.address = {core::env("MASTER_ADDR").value_or("127.0.0.1"), static_cast<uint16_t>(port)};
    return found;
  }
  return found;
}

Rendezvous from_url(std::string_view url) {
  const auto scheme_end = url.find("://");
  const auto query_at = url.find('?');
  const std::string_view scheme = url.substr(0, scheme_end);
  if (scheme_end == url.npos || (scheme != "tcp" && scheme != "file"))
    throw ConfigError(
        fmt::format("cannot start from '{}'; it must begin with env://, tcp:// or file://", url));
  const std::string_view place =
      url.substr(scheme_end + 3, query_at == url.npos ? url.npos : query_at - scheme_end - 3);
  const auto query = parse_query(query_at == url.npos ? "" : url.substr(query_at + 1), url);
  const auto number = [&](const char* key) -> int64_t {
    const auto value = query.find(key);
    const auto parsed = value == query.end() ? std::nullopt : core::parse_int(value->second);
    if (!parsed)
      throw ConfigError(
          fmt::format("'{}' needs {}=NUMBER, as in {}://...?rank=0&size=4", url, key, scheme));
    return *parsed;
  };
  const int64_t rank = number("rank"), size = number("size");
  check_rank(rank, size, url);
  Rendezvous found;
  found.job = job_name();
  found.rank = static_cast<int>(rank);
  found.size = static_cast<int>(size);
  if (const auto job = query.find("job"); job != query.end()) found.job = job->second;
  if (scheme == "tcp") {
    found.kind = Rendezvous::Kind::Tcp;
    found.address = net::parse_address(place);
  } else {
    if (place.empty() || place.front() != '/')
      throw ConfigError(
          fmt::format("'{}' needs an absolute path, as in file:///tmp/job?rank=0&size=4", url));
    found.kind = Rendezvous::Kind::File;
    found.path = std::string(place);
  }
  if (found.size == 1) found.kind = Rendezvous::Kind::Alone;
  return found;
}

}  // namespace

Rendezvous find_rendezvous(std::string_view url) {
  if (url.empty() || url == "env://") return from_environment();
  return from_url(url);
}

}  // namespace trireme
