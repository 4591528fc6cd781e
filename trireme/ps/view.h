#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/ps/ids.h"

namespace trireme::ps {

/// Who holds a range in one epoch: the chain, head first, and a server that is being given a copy.
///
///   client <--> head --> ... --> tail - - > joiner
///
/// Clients talk to the head. An update is acknowledged when the whole chain has it.
struct Assignment {
  Epoch epoch = 0;
  std::vector<Member> chain = {};
  std::optional<Member> joiner = {};
  bool operator==(const Assignment&) const = default;

  template <class Archive>
  void fields(Archive& archive) {
    archive(epoch, chain, joiner);
  }
};

/// Where one thread of a server listens.
struct Endpoint {
  std::string tcp = {};    ///< numeric address and port
  std::string local = {};  ///< unix socket, for nodes of the same host
  std::string host = {};   ///< which host that is: boot id and network namespace
  bool operator==(const Endpoint&) const = default;

  template <class Archive>
  void fields(Archive& archive) {
    archive(tcp, local, host);
  }
};

/// A server that lives, and where its lanes listen.
struct ListedServer {
  Life life = 0;
  std::vector<Endpoint> lanes = {};
  bool operator==(const ListedServer&) const = default;

  template <class Archive>
  void fields(Archive& archive) {
    archive(life, lanes);
  }
};

/// A worker that has work: reads wait for its clock, and only its present life may push.
struct ActiveWorker {
  uint32_t worker = 0;
  Life life = 0;
  Clock start = 0;  ///< it pushes nothing for earlier clocks
  bool operator==(const ActiveWorker&) const = default;

  template <class Archive>
  void fields(Archive& archive) {
    archive(worker, life, start);
  }
};

/// A snapshot that ranges shall take: at this clock in lockstep, otherwise when they learn of it.
struct SnapshotOrder {
  uint64_t snapshot = 0;  ///< 0: none
  Clock clock = 0;
  uint64_t step = 0;  ///< batches of all workers that it is sure to have, divided by the workers
  bool operator==(const SnapshotOrder&) const = default;

  template <class Archive>
  void fields(Archive& archive) {
    archive(snapshot, clock, step);
  }
};

/// What the manager has decided. Later views have higher versions; a view is complete in itself.
struct View {
  uint64_t version = 0;
  /// Counts how often all servers went back to a snapshot. Nothing passes from one generation to
  /// the next but what the snapshot holds.
  uint32_t generation = 0;
  SnapshotOrder restored = {};  ///< the snapshot that this generation began with; 0: the seed
  std::vector<Assignment> ranges = {};
  std::map<uint32_t, ListedServer> servers = {};
  uint64_t workers_version = 0;  ///< the version in which `workers` changed last
  std::vector<ActiveWorker> workers = {};
  SnapshotOrder snapshot = {};
  bool over = false;  ///< all work is done, and saved where that is wanted
  bool operator==(const View&) const = default;

  template <class Archive>
  void fields(Archive& archive) {
    archive(version, generation, restored, ranges, servers, workers_version, workers, snapshot,
            over);
  }
};

/// The `count` servers that each range belongs to, the head first, by consistent hashing with
/// bounded loads (Mirrokni, Thorup, Zadimoghaddam 2018). Each server has 64 places on a ring, each
/// range one, and a range goes to the next servers clockwise that are not full: no server is the
/// head of more than its share of the ranges, or holds more than its share of all copies, rounded
/// up. A server that comes or goes changes few other ranges than its own.
std::vector<std::vector<uint32_t>> place_ranges(uint32_t ranges,
                                                const std::vector<uint32_t>& servers, size_t count);

}  // namespace trireme::ps
