#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "trireme/ps/environment.h"
#include "trireme/ps/protocol.h"
#include "trireme/ps/range_state.h"

namespace trireme::ps {

/// The file of one range in a snapshot.
std::string snapshot_name(uint64_t snapshot, TableId table, RangeId range);

/// What a replica needs of its server.
class ReplicaHost {
 public:
  virtual ~ReplicaHost() = default;
  virtual Environment& environment() = 0;
  virtual const View& view() const = 0;
  virtual Member self() const = 0;
  virtual void send(NodeId to, const Body& body) = 0;
  virtual void refuse(NodeId to, Refusal refusal) = 0;
  /// The sentence that refuses so many more bytes; empty if there is room.
  virtual std::string no_room_for(size_t bytes) const = 0;
};

/// One server's copy of one range of one table, in a chain (van Renesse and Schneider, 2004).
///
///             push, pull                Forward 7..9             Forward 7..8
///   client  ------------>  head (9)  ---------------->  (8)  ---------------->  tail (7)
///           <------------            <----------------       <----------------
///               reply                      Ack 7                    Ack 7
///
/// The head orders requests into a log; each server applies an entry, passes it on and keeps it
/// until it is acknowledged from behind. What the tail has is committed: only then does the head
/// reply. A pull is read at once, and the reply waits for a barrier behind it: so what was read is
/// on the whole chain, and the chain was still the one of this epoch. Servers that the manager took
/// out of the chain cannot acknowledge or answer anything alone, whether they know it or not,
/// because one of the chain that stays refuses their epoch.
///
/// A joiner is first sent the state (Transfer), then the entries after it. Once it has the state,
/// the tail commits nothing without it, and then tells the manager (Joined), which makes it the
/// tail.
class Replica {
 public:
  Replica(const Place& place, ReplicaHost& host) : place_(place), host_(host) {}

  /// Takes the place in the chain that the view gives it. Must be in the chain or the joiner.
  void install(const Assignment& assignment);
  /// The head puts what a new view says about workers and snapshots into the log.
  void follow_view();

  void on_request(Request request, NodeId from);
  void on_forward(Forward forward, Member from);
  void on_ack(const Ack& ack, Member from);
  void on_transfer(const Transfer& transfer, Member from);
  void on_round_ask(const RoundAsk& ask, NodeId from);
  void on_round_ready(const RoundReady& ready);
  /// Sends again what was not answered.
  void tick();
  /// Refuses everyone that waits here.
  void retire();

  bool is_head() const { return state_ && place_in_chain_ == 0; }
  /// Whether this is the tail and the joiner has everything.
  bool has_joined() const { return step_ == JoinStep::Requiring && acked_ >= join_mark_; }
  Epoch epoch() const { return assignment_.epoch; }
  const RangeState* state() const { return state_ ? &*state_ : nullptr; }
  Sequence last() const { return last_; }
  size_t parked() const { return parked_.size(); }

 private:
  enum class JoinStep { None, Copying, Requiring };
  struct Parked {
    Request request;
    NodeId from;
    bool repeated = false;
  };
  struct Waiting {
    NodeId to;
    Reply reply;
  };

  void build_first_state();
  void choose_next();
  std::optional<Member> predecessor() const;
  bool requires_next() const { return next_ && (step_ != JoinStep::Copying); }
  NodeId node_of(Member member) const { return {Role::Server, member.index}; }
  void refuse(const Request& request, NodeId from, Reason reason, std::string sentence);
  void admit_push(Request request, NodeId from);
  void answer_pull(const Parked& pull);
  void answer_when_committed(NodeId to, Reply reply);
  void serve_parked();
  void append(Entry entry);
  void apply(Entry entry);
  void forward_from(Sequence first);
  void advance();
  void look_whether_whole();
  void announce_round();
  void report_snapshot();
  void send_transfer();
  void resend();

  Place place_;
  ReplicaHost& host_;
  Assignment assignment_;
  size_t place_in_chain_ = 0;
  std::optional<RangeState> state_;  ///< none: a joiner that waits for its copy

  Sequence last_ = 0;         ///< applied here
  Sequence committed_ = 0;    ///< applied by all that must
  Sequence acked_ = 0;        ///< applied by next_ and all behind it
  std::deque<Entry> buffer_;  ///< acked_ + 1 .. last_, while there is a next_
  std::optional<Member> next_;
  Time progress_at_{};  ///< when the last new acknowledgement came

  JoinStep step_ = JoinStep::None;
  std::string transfer_;  ///< the state after acked_, while Copying
  Sequence join_mark_ = 0;

  std::map<RequestId, Parked> parked_;        ///< pulls that must wait for other workers
  std::multimap<Sequence, Waiting> waiting_;  ///< replies that wait for the chain
  std::optional<Sequence> whole_at_;          ///< the entry that made the round whole
};

}  // namespace trireme::ps
