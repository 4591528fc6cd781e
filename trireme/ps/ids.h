#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <string>

namespace trireme::ps {

/// A watcher only asks the manager how the job is.
enum class Role : uint8_t { Manager, Server, Worker, Watcher };
constexpr Role last_of(Role) {
  return Role::Watcher;
}

/// One process of the job: its role and its index among those of the role. A worker of several
/// ranks has as many processes; the rank k of worker w is number w x ranks + k.
struct NodeId {
  Role role = Role::Manager;
  uint32_t index = 0;
  auto operator<=>(const NodeId&) const = default;

  template <class Archive>
  void fields(Archive& archive) {
    archive(role, index);
  }
};

constexpr NodeId kManager{Role::Manager, 0};

/// "server 2", for messages to people.
std::string name_of(NodeId node);

/// A node that restarts begins another life, which the manager numbers from 1. What was sent in an
/// earlier life is refused.
using Life = uint32_t;
using TableId = uint32_t;
using RangeId = uint32_t;
/// The ownership of a range changes from epoch to epoch.
using Epoch = uint64_t;
/// The steps of one worker, from 0.
using Clock = uint64_t;
/// The place of a batch in the data order of the whole job. It names the work itself, whoever does
/// it: a range applies each batch once.
using Batch = uint64_t;
using Task = uint64_t;
/// The position of an entry in the log of a range; the first is 1.
using Sequence = uint64_t;

using Time = std::chrono::microseconds;

/// One life of a server: what a chain consists of.
struct Member {
  uint32_t index = 0;
  Life life = 0;
  auto operator<=>(const Member&) const = default;

  template <class Archive>
  void fields(Archive& archive) {
    archive(index, life);
  }
};

}  // namespace trireme::ps
