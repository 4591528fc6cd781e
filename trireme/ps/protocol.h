#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trireme/ps/ids.h"
#include "trireme/ps/view.h"

namespace trireme::ps {

// One message:
//   | job: 8 | generation: 4 | from: role 1, index 4 | life: 4 | kind: 1 | fields of the kind |
// Numbers are little endian; archive.h says how the rest is written.

/// Node -> manager, until the Welcome comes: a process has begun. The nonce tells a repeated
/// message from another start.
struct Hello {
  uint64_t nonce = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(nonce);
  }
};

struct Welcome {
  uint64_t nonce = 0;
  Life life = 0;
  View view = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(nonce, life, view);
  }
};

/// Manager -> node: this life has ended in the manager's books; begin another.
struct LifeEnded {
  Life life = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(life);
  }
};

/// Node -> manager. The manager answers with the view if the node's is older.
struct Heartbeat {
  uint64_t view_version = 0;
  bool leaving = false;
  template <class Archive>
  void fields(Archive& archive) {
    archive(view_version, leaving);
  }
};

struct ViewChange {
  View view = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(view);
  }
};

/// What a request is known by. A retry has the same id and is applied once.
struct RequestId {
  uint32_t worker = 0;
  Life life = 0;
  TableId table = 0;
  Clock clock = 0;
  uint64_t number = 0;
  RangeId range = 0;
  auto operator<=>(const RequestId&) const = default;
  template <class Archive>
  void fields(Archive& archive) {
    archive(worker, life, table, clock, number, range);
  }
};

/// Worker -> head of the range: add this, read that, or both in one round trip. One push per
/// worker, clock, table and range.
struct Request {
  RequestId id = {};
  Epoch epoch = 0;
  uint64_t view_version = 0;  ///< the range must know this view or a later one
  bool push = false;
  bool pull = false;  ///< with push: reads at the next clock
  Batch batch = 0;
  double weight = 1;
  double rate = 1;
  uint64_t read_version = 0;  ///< of the pull that the gradient comes from
  std::vector<uint64_t> keys = {};
  std::string values = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(id, epoch, view_version, push, pull, batch, weight, rate, read_version, keys, values);
  }
};

struct Reply {
  RequestId id = {};
  Epoch epoch = 0;
  uint64_t version = 0;   ///< updates that the range has applied
  bool repeated = false;  ///< the batch had been applied already, from another worker
  std::string values = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(id, epoch, version, repeated, values);
  }
};

/// After the first three the client tries again; the others end its operation.
enum class Reason : uint8_t { OtherView, TooEarly, EarlierLife, BadRequest, NoMemory };
constexpr Reason last_of(Reason) {
  return Reason::NoMemory;
}
constexpr Role last_of(Role) {
  return Role::Worker;
}

/// Nothing was changed, and why, in one sentence.
struct Refusal {
  RequestId id = {};
  Reason reason = Reason::BadRequest;
  std::string sentence = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(id, reason, sentence);
  }
};

enum class EntryKind : uint8_t { Push, Workers, Round, Snapshot, Barrier };
constexpr EntryKind last_of(EntryKind) {
  return EntryKind::Barrier;
}

/// One entry of the log of a range. All servers of its chain apply the same entries in the same
/// order, and so have the same state.
struct Entry {
  EntryKind kind = EntryKind::Barrier;
  Request request = {};  ///< Push
  uint64_t workers_version = 0;
  std::vector<ActiveWorker> workers = {};  ///< Workers
  Clock clock = 0;                         ///< Round
  double norm = 0;                         ///< Round: of the summed gradient over all ranges
  SnapshotOrder snapshot = {};             ///< Snapshot
  template <class Archive>
  void fields(Archive& archive) {
    archive(kind);
    if (kind == EntryKind::Push) archive(request);
    if (kind == EntryKind::Workers) archive(workers_version, workers);
    if (kind == EntryKind::Round) archive(clock, norm);
    if (kind == EntryKind::Snapshot) archive(snapshot);
  }
};

/// Server -> its successor: entries of the log from `first` on.
struct Forward {
  TableId table = 0;
  RangeId range = 0;
  Epoch epoch = 0;
  Sequence first = 1;
  std::vector<Entry> entries = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(table, range, epoch, first, entries);
  }
};

/// Server -> its predecessor: this server and all after it have the log up to `sequence`.
struct Ack {
  TableId table = 0;
  RangeId range = 0;
  Epoch epoch = 0;
  Sequence sequence = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(table, range, epoch, sequence);
  }
};

/// Tail -> joiner: the whole range as it was after the entry `sequence`.
struct Transfer {
  TableId table = 0;
  RangeId range = 0;
  Epoch epoch = 0;
  Sequence sequence = 0;
  std::string state = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(table, range, epoch, sequence, state);
  }
};

/// Tail -> manager: the joiner has the range, and nothing is acknowledged without it any more.
struct Joined {
  RangeId range = 0;
  Epoch epoch = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(range, epoch);
  }
};

/// Head -> coordinator (head of range 0): all pushes of a clock are in this range of this table.
struct RoundWhole {
  TableId table = 0;
  RangeId range = 0;
  Clock clock = 0;
  double squares = 0;  ///< sum of squares of the summed gradient
  template <class Archive>
  void fields(Archive& archive) {
    archive(table, range, clock, squares);
  }
};

/// Coordinator -> head: is this clock whole at your range?
struct RoundAsk {
  TableId table = 0;
  RangeId range = 0;
  Clock clock = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(table, range, clock);
  }
};

/// Coordinator -> head: the clock is whole at all ranges of all tables; apply it.
struct RoundReady {
  TableId table = 0;
  RangeId range = 0;
  Clock clock = 0;
  double norm = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(table, range, clock, norm);
  }
};

/// Head -> manager: the range's part of a snapshot is on disk.
struct SnapshotDone {
  TableId table = 0;
  RangeId range = 0;
  uint64_t snapshot = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(table, range, snapshot);
  }
};

/// Worker -> manager: the task `done`, if any, is in all ranges; give me another.
struct TaskRequest {
  uint64_t number = 0;
  std::optional<Task> done = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(number, done);
  }
};

enum class Answer : uint8_t { Work, Wait, Finished };
constexpr Answer last_of(Answer) {
  return Answer::Finished;
}

struct TaskReply {
  Life life = 0;  ///< of the worker; numbers begin anew in each
  uint64_t number = 0;
  Answer answer = Answer::Wait;
  Task task = 0;
  Clock clock = 0;            ///< of the task's first step
  uint64_t view_version = 0;  ///< for the task's requests
  template <class Archive>
  void fields(Archive& archive) {
    archive(life, number, answer, task, clock, view_version);
  }
};

using Body = std::variant<Hello, Welcome, LifeEnded, Heartbeat, ViewChange, Request, Reply, Refusal,
                          Forward, Ack, Transfer, Joined, RoundWhole, RoundAsk, RoundReady,
                          SnapshotDone, TaskRequest, TaskReply>;

struct Header {
  uint64_t job = 0;
  uint32_t generation = 0;
  NodeId from = {};
  Life life = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(job, generation, from, life);
  }
};

struct Message {
  Header header = {};
  Body body = {};
};

std::string encode(const Header& header, const Body& body);
/// Throws CommError, in one sentence, if the bytes are no message.
Message decode(std::string_view bytes);

}  // namespace trireme::ps
