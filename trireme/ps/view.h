#pragma once

#include <optional>
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
  bool operator==(const SnapshotOrder&) const = default;

  template <class Archive>
  void fields(Archive& archive) {
    archive(snapshot, clock);
  }
};

/// What the manager has decided. Later views have higher versions; a view is complete in itself.
struct View {
  uint64_t version = 0;
  /// Counts how often all servers went back to a snapshot. Nothing passes from one generation to
  /// the next but what the snapshot holds.
  uint32_t generation = 0;
  uint64_t restored = 0;  ///< the snapshot that this generation began with; 0: the seed
  std::vector<Assignment> ranges = {};
  uint64_t workers_version = 0;  ///< the version in which `workers` changed last
  std::vector<ActiveWorker> workers = {};
  SnapshotOrder snapshot = {};
  bool operator==(const View&) const = default;

  template <class Archive>
  void fields(Archive& archive) {
    archive(version, generation, restored, ranges, workers_version, workers, snapshot);
  }
};

/// The `count` servers that a range belongs to, by consistent hashing: the next ones clockwise from
/// the range's place on a ring on which each server has 64 places. A server that comes or goes
/// changes only the ranges next to its places.
std::vector<uint32_t> servers_of_range(RangeId range, const std::vector<uint32_t>& servers,
                                       size_t count);

}  // namespace trireme::ps
