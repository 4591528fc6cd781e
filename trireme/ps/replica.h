#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "trireme/ps/environment.h"
#include "trireme/ps/key_lists.h"
#include "trireme/ps/protocol.h"
#include "trireme/ps/range_state.h"

namespace trireme::ps {

/// What a replica needs of its server.
class ReplicaHost {
 public:
  virtual ~ReplicaHost() = default;
  virtual Environment& environment() = 0;
  virtual const View& view() const = 0;
  virtual Member self() const = 0;
  virtual void send(NodeId to, const Body& body) = 0;
  virtual void refuse(NodeId to, Refusal refusal) = 0;
  /// What is left of the server's memory budget, and what a push has taken of it.
  virtual uint64_t room_bytes() const = 0;
  virtual void grew(uint64_t bytes) = 0;
  /// The sentence that says what the server has.
  virtual std::string describe_memory() const = 0;
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
/// A joiner is first sent the state, in pieces (Transfer), then the entries after it. Once it has
/// the state, the tail commits nothing without it, and then tells the manager (Joined), which makes
/// it the tail.
///
/// The head saves the range's part of a snapshot. If it dies before that, the manager orders
/// another one.
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
  void on_transfer_ack(const TransferAck& ack, Member from);
  void on_saved(uint64_t snapshot, std::string contents);
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
  /// Entries that the next in the chain has not acknowledged.
  size_t behind() const { return next_ ? buffer_.size() : 0; }
  uint64_t pushes() const { return pushes_; }
  uint64_t pulls() const { return pulls_; }

 private:
  enum class JoinStep { None, Copying, Requiring };
  struct Parked {
    Request request;
    NodeId from;
    uint64_t missed = 0;
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
  bool know_keys(Request& request);
  void admit_push(Request request, NodeId from);
  void answer_pull(const Parked& pull);
  void answer_when_committed(NodeId to, Reply reply);
  void serve_parked();
  void append(Entry entry);
  void apply(Entry entry);
  void forward_from(Sequence first);
  void forward_rest();
  void advance();
  void look_whether_whole();
  void announce_round();
  void report_snapshot();
  void send_transfer();
  void resend();
  uint64_t chain_room() const { return std::min(host_.room_bytes(), room_behind_); }

  Place place_;
  ReplicaHost& host_;
  Assignment assignment_;
  size_t place_in_chain_ = 0;
  std::optional<RangeState> state_;  ///< none: a joiner that waits for its copy

  Sequence last_ = 0;         ///< applied here
  Sequence committed_ = 0;    ///< applied by all that must
  Sequence acked_ = 0;        ///< applied by next_ and all behind it
  Sequence sent_ = 0;         ///< forwarded to next_, and perhaps lost on the way
  std::deque<Entry> buffer_;  ///< acked_ + 1 .. last_, while there is a next_
  std::optional<Member> next_;
  Time progress_at_{};  ///< when the last new acknowledgement came

  JoinStep step_ = JoinStep::None;
  Frame transfer_;              ///< the state after acked_, while Copying
  uint64_t transfer_sent_ = 0;  ///< bytes of it
  uint64_t transfer_acked_ = 0;
  std::string incoming_;  ///< of a joiner: as far as it has come
  Sequence join_mark_ = 0;
  uint64_t room_behind_ = UINT64_MAX;

  std::map<RequestId, Parked> parked_;        ///< pulls that must wait for other workers
  std::multimap<Sequence, Waiting> waiting_;  ///< replies that wait for the chain
  std::optional<Sequence> whole_at_;          ///< the entry that made the round whole
  KeyLists key_lists_;
  uint64_t saved_ = 0;          ///< the last snapshot that this server has on disk,
  std::string saved_contents_;  ///< and what its index must say
  uint64_t pushes_ = 0, pulls_ = 0;
};

}  // namespace trireme::ps
