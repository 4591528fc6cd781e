#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trireme/ps/ids.h"
#include "trireme/ps/payload.h"
#include "trireme/ps/view.h"

namespace trireme::ps {

// One message:
//   | job: 8 | generation: 4 | from: role 1, index 4 | life: 4 | kind: 1 | fields of the kind |
// Numbers are little endian; archive.h says how the rest is written.

/// Node -> manager, until the Welcome comes: a process has begun. The nonce tells a repeated
/// message from another start.
struct Hello {
  uint64_t nonce = 0;
  uint64_t fingerprint = 0;          ///< of the job as this node knows it
  std::vector<Endpoint> lanes = {};  ///< of a server
  template <class Archive>
  void fields(Archive& archive) {
    archive(nonce, fingerprint, lanes);
  }
};

/// Manager -> node: it cannot take part, and why. Its process ends.
struct Rejected {
  uint64_t nonce = 0;
  std::string sentence = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(nonce, sentence);
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

/// Manager -> node: this life has ended in the manager's books; begin another, unless another
/// process has taken the node's place. Life 0: greet with another nonce, because this one began a
/// life that is over.
struct LifeEnded {
  Life life = 0;
  bool replaced = false;
  uint64_t nonce = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(life, replaced, nonce);
  }
};

/// What a server, or a worker, has done since its life began, for people who watch the job.
struct Figures {
  uint64_t bytes = 0;  ///< that its ranges have in memory
  uint64_t rows = 0;
  uint64_t pushes = 0, pulls = 0;
  uint64_t behind = 0;   ///< entries of logs that it has and its successors do not
  uint64_t refused = 0;  ///< messages
  uint64_t pid = 0;      ///< of a server's process; 0: it has none of its own
  bool operator==(const Figures&) const = default;
  template <class Archive>
  void fields(Archive& archive) {
    archive(bytes, rows, pushes, pulls, behind, refused, pid);
  }
};

/// Node -> manager. The manager answers with the view if the node's is older.
struct Heartbeat {
  uint64_t view_version = 0;
  bool leaving = false;
  Figures figures = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(view_version, leaving, figures);
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
  bool pull = false;   ///< with push: reads at the next clock
  bool delta = false;  ///< of a pull: no values if nothing has changed since read_version
  Batch batch = 0;
  double weight = 1;   ///< samples or tokens in the sum; 0: there is nothing to apply
  double loss = 0;     ///< their sum of losses
  double divisor = 1;  ///< of the values; in lockstep the sum of the weights takes its place
  double rate = 1;
  uint64_t read_version = 0;  ///< of the pull that the gradient comes from
  std::vector<uint64_t> keys = {};
  uint64_t key_list = 0;  ///< not 0: the hash of the keys, which the server may know already
  Payload values = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(id, epoch, view_version, push, pull, delta, batch, weight, loss, divisor, rate,
            read_version, keys, key_list, values);
  }
};

/// The sums of a clock in lockstep, over all workers.
struct ClockTotals {
  double weight = 0, loss = 0;
  double norm = 0;  ///< of the mean gradient of all tables that clip, before clipping
  bool operator==(const ClockTotals&) const = default;
  template <class Archive>
  void fields(Archive& archive) {
    archive(weight, loss, norm);
  }
};

struct Reply {
  RequestId id = {};
  Epoch epoch = 0;
  uint64_t version = 0;     ///< updates that the range has applied
  uint64_t missed = 0;      ///< of a push: updates between its pull and itself
  bool repeated = false;    ///< the batch had been applied already, from another worker
  bool unchanged = false;   ///< of a pull: the client has these values already
  ClockTotals totals = {};  ///< lockstep: of the clock of a push-pull, of the one before a pull
  Payload values = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(id, epoch, version, missed, repeated, unchanged, totals, values);
  }
};

/// After the first four the client tries again; the others end its operation.
enum class Reason : uint8_t { OtherView, TooEarly, EarlierLife, UnknownKeys, BadRequest, NoMemory };
constexpr Reason last_of(Reason) {
  return Reason::NoMemory;
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
  double squares = 0;                      ///< Round: of the summed gradient of all that clips
  SnapshotOrder snapshot = {};             ///< Snapshot
  template <class Archive>
  void fields(Archive& archive) {
    archive(kind);
    if (kind == EntryKind::Push) archive(request);
    if (kind == EntryKind::Workers) archive(workers_version, workers);
    if (kind == EntryKind::Round) archive(clock, squares);
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

/// Server -> its predecessor: this server and all after it have the log up to `sequence`, and room
/// for so many bytes more.
struct Ack {
  TableId table = 0;
  RangeId range = 0;
  Epoch epoch = 0;
  Sequence sequence = 0;
  uint64_t room_bytes = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(table, range, epoch, sequence, room_bytes);
  }
};

/// Tail -> joiner: a piece of the range as it was after the entry `sequence`.
struct Transfer {
  TableId table = 0;
  RangeId range = 0;
  Epoch epoch = 0;
  Sequence sequence = 0;
  uint64_t begin = 0, whole_bytes = 0;
  Payload bytes = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(table, range, epoch, sequence, begin, whole_bytes, bytes);
  }
};

/// Joiner -> tail: the copy has come as far as that.
struct TransferAck {
  TableId table = 0;
  RangeId range = 0;
  Epoch epoch = 0;
  uint64_t bytes = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(table, range, epoch, bytes);
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
  double squares = 0;  ///< of all ranges of all tables that clip
  template <class Archive>
  void fields(Archive& archive) {
    archive(table, range, clock, squares);
  }
};

/// Head -> manager: the range's part of a snapshot is on disk.
struct SnapshotDone {
  TableId table = 0;
  RangeId range = 0;
  uint64_t snapshot = 0;
  std::string contents = {};  ///< what the index of the snapshot must say of it
  template <class Archive>
  void fields(Archive& archive) {
    archive(table, range, snapshot, contents);
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
  Clock clock = 0;            ///< of the task's first step; Finished: at which all is read
  uint64_t view_version = 0;  ///< for the task's requests
  template <class Archive>
  void fields(Archive& archive) {
    archive(life, number, answer, task, clock, view_version);
  }
};

/// Worker -> manager, until the ReportTaken comes: what came of a batch, as bytes that the manager
/// passes on to whoever writes the run's files.
struct Report {
  uint64_t number = 0;
  Batch batch = 0;
  std::string text = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(number, batch, text);
  }
};

struct ReportTaken {
  Life life = 0;  ///< of the worker; numbers begin anew in each
  uint64_t number = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(life, number);
  }
};

/// Anyone who knows the secret -> manager: how is the job? And the answer, for people.
struct StatusAsk {
  template <class Archive>
  void fields(Archive&) {}
};
struct Status {
  std::string json = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(json);
  }
};

using Body = std::variant<Hello, Welcome, Rejected, LifeEnded, Heartbeat, ViewChange, Request,
                          Reply, Refusal, Forward, Ack, Transfer, TransferAck, Joined, RoundWhole,
                          RoundAsk, RoundReady, SnapshotDone, TaskRequest, TaskReply, Report,
                          ReportTaken, StatusAsk, Status>;

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

Frame encode(const Header& header, const Body& body);
/// Throws CommError, in one sentence, if the bytes are no message.
Message decode(const Frame& frame);

}  // namespace trireme::ps
