#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "trireme/comm/world.h"
#include "trireme/net/handshake.h"
#include "trireme/net/secret.h"
#include "trireme/net/store.h"

namespace trireme::comm {

/// What a rank needs to find the others of its job.
struct Bootstrap {
  net::Store& store;
  net::Secret secret;
  std::string job;
  int rank = 0;
  int size = 1;
  std::string address = "127.0.0.1";  ///< of this host, as the other ranks reach it
  std::string host_key;               ///< the same for ranks of one host; empty: net::host_key()
  std::string place;                  ///< of the store, for messages: a path or an address
  std::string gpu = {};               ///< this rank's GPU and NCCL (nccl/placement.h), if any
  net::Deadline deadline;
  WorldOptions options = {};

  net::Identity as(std::string role) const { return {job, std::move(role), rank, size}; }
};

/// A rank's entry in the table that all ranks exchange.
struct RankEntry {
  std::string host;      ///< its name
  std::string host_key;  ///< identifies the host
  int64_t pid = 0;
  uint64_t born = 0;
  std::string segments;  ///< name of the unix socket that hands out its segments
  std::string address;   ///< where it listens for streams; empty: it does not
  std::string wants;     ///< the backend that it was told to use
  std::string gpu;       ///< its GPU and NCCL (nccl/placement.h); empty: none
};

/// Puts this rank's entry into the job's table and returns the entries of all ranks. Throws if
/// another process already has this rank; a timeout names the ranks that never joined. While it
/// waits for long, rank 0 names the missing ranks on stderr. Collective.
std::vector<RankEntry> exchange_entries(const Bootstrap& bootstrap, const RankEntry& mine);

std::vector<Member> members_of(const std::vector<RankEntry>& entries);
std::string host_name();

/// The start time of a process in the kernel's ticks, which tells a reused pid from the original.
/// 0: no such process.
uint64_t process_born(int64_t pid);

}  // namespace trireme::comm
