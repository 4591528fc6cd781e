#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/ps/range_state.h"

namespace trireme::ps {

/// One range's part of a snapshot.
struct SnapshotPart {
  uint64_t snapshot = 0;
  uint64_t step = 0;  ///< of its order
  TableId table = 0;
  RangeId range = 0;
  auto operator<=>(const SnapshotPart&) const = default;
};

/// All that a node can do to the world. Manager, servers and workers have no threads, clocks,
/// sockets or files of their own: they are told of messages and of time, and act through this. So
/// the same code runs in processes and in a simulator that decides what happens when.
///
///        receive(bytes)  tick()
///             |            |
///             v            v
///        +--------------------+   send    now   random
///        |        node        | ------------------------>  Environment
///        +--------------------+   append  sync  save  complete  load
class Environment {
 public:
  virtual ~Environment() = default;

  virtual Time now() = 0;
  virtual uint64_t random() = 0;

  /// Sends a message that may be delayed, lost, repeated, or overtaken by later ones. `lane`: which
  /// thread of a server it is for; 0 for other roles.
  virtual void send(NodeId to, uint32_t lane, Frame message) = 0;
  /// The stream that messages to a lane take now, as a number; 0: a message may be lost, and nobody
  /// notices.
  virtual uint64_t way_to(NodeId /*to*/, uint32_t /*lane*/) { return 0; }
  /// Whether all that was sent that way has arrived or still travels.
  virtual bool is_open(uint64_t /*way*/) { return false; }

  /// The log of this node, which survives its death up to the last sync(); of what was appended
  /// later any part may survive.
  virtual void append(std::string_view record) = 0;
  virtual void sync() = 0;
  virtual std::string read_log() = 0;
  /// Another log in the place of this one: after a death it is the old one or the new one.
  virtual void replace_log(std::string_view log) = 0;

  /// A snapshot is about to be ordered.
  virtual void begin(const SnapshotOrder& order) = 0;
  /// Begins to save a range's part of a snapshot. When it is on the disk, `Node::on_saved` is
  /// called with what the index must say of it.
  virtual void save(const SnapshotPart& part, RangeState::Image image) = 0;
  /// All parts are saved: makes them a snapshot that `load` finds after any death. `contents`: what
  /// on_saved said of each.
  virtual void complete(const SnapshotOrder& order, const std::vector<std::string>& contents) = 0;
  /// The log names this snapshot, so nobody returns to an earlier one: old ones may go.
  virtual void prune(const SnapshotOrder& newest) = 0;
  /// An ordered snapshot will not be complete: what is there of it may go.
  virtual void abandon(const SnapshotOrder& order) = 0;
  /// A range of a complete snapshot; of number 0: of what the job starts from. Nothing if there is
  /// none.
  virtual std::optional<RangeState::Image> load(const SnapshotPart& part) = 0;

  /// A line for people.
  virtual void note(const std::string& line) = 0;
};

}  // namespace trireme::ps
