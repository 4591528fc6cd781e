#include "trireme/launch/options.h"

#include "trireme/core/env.h"
#include "trireme/core/error.h"

namespace trireme::launch {

namespace {

constexpr int kMaxRanks = 4096;

OutputStreams parse_streams(std::string_view digit, std::string_view whole) {
  const auto value = core::parse_int(digit);
  if (!value || *value < 0 || *value > 3)
    throw ConfigError(fmt::format(
        "'{}' does not choose streams: write 0 (neither), 1 (stdout), 2 (stderr) or 3 (both), "
        "or one per local rank as in '0:1,1:3'",
        whole));
  return {.out = (*value & 1) != 0, .err = (*value & 2) != 0};
}

void require(bool ok, const std::string& sentence) {
  if (!ok) throw ConfigError(sentence);
}

void check_roles(const RunOptions& o) {
  const Roles& roles = *o.roles;
  const auto require_some = [&](const char* option, int count) {
    require(count >= 1 && count <= kMaxRanks,
            fmt::format("{} {}: must be 1 to {}", option, count, kMaxRanks));
  };
  require_some("--servers", roles.servers);
  require_some("--workers", roles.workers);
  require(int64_t{roles.workers} * o.num_ranks + roles.servers < kMaxRanks,
          fmt::format("{} servers and {} workers of {} ranks are more than {} processes",
                      roles.servers, roles.workers, o.num_ranks, kMaxRanks));
  require(
      o.num_hosts == 1,
      fmt::format("--nnodes {} with --servers: servers and workers are started on one host only",
                  o.num_hosts));
  require(o.master_addr.empty() && o.master_port == 0,
          "--master-addr and --master-port with --servers: every worker is a world of its own, and "
          "gets a free port; leave them out");
}

}  // namespace

StreamChoice StreamChoice::parse(std::string_view text) {
  StreamChoice choice;
  if (text.find(':') == text.npos) {
    choice.all_ = parse_streams(text, text);
    return choice;
  }
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    const size_t colon = entry.find(':');
    const auto rank = core::parse_int(entry.substr(0, colon));
    if (colon == entry.npos || !rank) parse_streams("", text);
    choice.ranks_[static_cast<int>(*rank)] = parse_streams(entry.substr(colon + 1), text);
  }
  return choice;
}

OutputStreams StreamChoice::of(int local_rank) const {
  const auto found = ranks_.find(local_rank);
  return found == ranks_.end() ? all_ : found->second;
}

bool StreamChoice::any() const {
  bool some = all_.out || all_.err;
  for (const auto& [rank, streams] : ranks_) some = some || streams.out || streams.err;
  return some;
}

void check_options(const RunOptions& o) {
  require(!o.command.empty() && !o.command[0].empty(), "no program was given");
  require(o.num_ranks >= 1 && o.num_ranks <= kMaxRanks,
          fmt::format("{} ranks per host: must be 1 to {}", o.num_ranks, kMaxRanks));
  require(o.num_hosts >= 1, fmt::format("--nnodes {} must be at least 1", o.num_hosts));
  require(o.host >= 0 && o.host < o.num_hosts,
          fmt::format("--node-rank {} is not one of 0 to {} (--nnodes {})", o.host, o.num_hosts - 1,
                      o.num_hosts));
  require(o.num_hosts == 1 || !o.master_addr.empty(),
          fmt::format("--nnodes {} needs --master-addr: the address of the host that is "
                      "--node-rank 0, as the others reach it",
                      o.num_hosts));
  require(o.master_port >= 0 && o.master_port <= 65535,
          fmt::format("--master-port {} is not a port (1 to 65535)", o.master_port));
  require(o.restarts() >= 0, fmt::format("--max-restarts {} is negative", o.restarts()));
  require(!o.log_dir.empty() || (!o.redirects.any() && !o.tee.any()),
          "--redirects and --tee write log files: they need --log-dir DIR");
  require(o.run_id.find('/') == o.run_id.npos && o.run_id != "." && o.run_id != "..",
          fmt::format("--rdzv-id '{}' cannot name a folder", o.run_id));
  if (o.roles) check_roles(o);
  for (const int rank : o.shown_ranks)
    require(rank >= 0 && rank < o.num_ranks,
            fmt::format("--local-ranks-filter names rank {}, but the local ranks are 0 to {}", rank,
                        o.num_ranks - 1));
}

}  // namespace trireme::launch
