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
  std::string address = "127.0.0.1";  ///< by which the other ranks reach this host
  std::string host_key;               ///< the same for ranks of one host; empty: found out
  std::string place;                  ///< of the store, for people: a path or an address
  net::Deadline deadline;
  WorldOptions options = {};

  net::Identity as(std::string role) const { return {job, std::move(role), rank, size}; }
};

/// A rank's entry in the table that all ranks exchange.
struct Entry {
  std::string host;      ///< its name
  std::string host_key;  ///< tells hosts apart
  int64_t pid = 0;
  uint64_t born = 0;
  std::string segments;  ///< name of the unix socket that passes its segments
  std::string address;   ///< where it listens for streams; empty: it does not
  std::string wants;     ///< the backend that it was told to use
};

/// Puts this rank's entry into the job's table, and returns everybody's. Throws where somebody else
/// is this rank already, and names the ranks that never came. Rank 0 says on stderr whom it waits
/// for when that takes long. Collective.
std::vector<Entry> exchange_entries(const Bootstrap& bootstrap, const Entry& mine);

std::vector<Member> members_of(const std::vector<Entry>& entries);

/// What makes a host a host, where nobody says: boot id and namespaces.
std::string host_key();
std::string host_name();

/// When a process began, in the kernel's ticks, so that a reused pid shows. 0: no such process.
uint64_t process_born(int64_t pid);

}  // namespace trireme::comm
