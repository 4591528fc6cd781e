#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trireme/ps/books.h"
#include "trireme/ps/node.h"

namespace trireme::ps {

/// Decides who lives, who holds which range, and who does which work. Every decision is a record
/// of its log and is on disk before anyone hears of it. Servers and workers that know the view do
/// not need it: while it is away, pushes and pulls go on.
///
///   message, tick --> decide(record) --> log, books --> sync --> replies, new view to everyone
class Manager final : public Node {
 public:
  /// Reads the log of this job, if there is one, and cuts off a torn end.
  Manager(const JobConfig& job, Environment& environment);

  void tick() override;

  const Books& books() const { return books_; }
  /// Whether all work is done, and, if a last snapshot is wanted, that is complete, too.
  bool is_finished() const;
  /// Hands out no more work than it must to come to the end of a step, and ends the job there.
  void stop_early();
  /// Takes a snapshot when all work is done, before workers are told so.
  void want_last_snapshot() { wants_last_ = true; }
  /// Once all work is done, a return to a state before that is an Error: some workers may have read
  /// the result and ended, and nobody would do their part again.
  void keep_result() { keeps_result_ = true; }

  /// Called when reports of batches have come: the first that was not written, and those that are
  /// there. Returns the batch up to which they are written now.
  std::function<Batch(Batch first, const std::map<Batch, std::string>&)> on_reports;
  void on_stream_lost(NodeId id) override;
  /// How the job is, for people: JSON.
  std::string status() const;
  /// How long it has not heard from a server or worker.
  Time silence_of(NodeId id) const;

 private:
  void handle(Message& message) override;
  void on_hello(NodeId from, const Hello& hello);
  void on_heartbeat(NodeId from, const Heartbeat& heartbeat);
  void on_joined(Member from, const Joined& joined);
  void on_snapshot_done(const SnapshotDone& done);
  void on_task_request(uint32_t worker, const TaskRequest& request);
  void on_report(uint32_t worker, const Report& report);
  void on_follower(const Message& message);
  std::string reject(NodeId from, const Hello& hello) const;

  void end_silent_lives();
  void hear(NodeId id);
  bool is_replaced(NodeId id, Life life) const;
  void forget_silences();
  bool is_well(Member server) const;
  bool is_last_heard_holder(NodeId id) const;
  void mend_ranges();
  bool are_dealt() const;
  bool may_copy() const;
  bool deal_first_ranges();
  void roll_back();
  std::optional<Assignment> mended(RangeId range, const std::vector<uint32_t>& targets) const;
  std::vector<uint32_t> eligible_servers() const;
  std::vector<Assignment> deal_ranges() const;
  std::vector<std::vector<uint32_t>> targets() const;
  void order_snapshot();
  void order(Clock clock);
  void order_again();
  void give_up_snapshot();
  void abandon_snapshot();
  void tidy_snapshots();
  NodeId node_of(NodeId id) const;
  bool wants_snapshot() const;
  enum class Handing : uint8_t { Free, MustWait };
  Handing order_before(Clock begin, Clock end);
  void shorten_log();

  std::optional<Task> choose_task(uint32_t worker) const;
  std::optional<Task> choose_backup(uint32_t worker) const;

  void decide(const Decision& decision);
  void reply(NodeId to, Body body) { outbox_.emplace_back(to, std::move(body)); }
  /// Makes decisions durable and only then lets them out.
  void publish();
  void write_log();
  Epoch next_epoch(Epoch epoch) const { return epoch + (job_.plant == Plant::SameEpoch ? 0 : 1); }

  Books books_;
  std::vector<std::pair<NodeId, Body>> outbox_;
  size_t log_bytes_ = 0, image_bytes_ = 0;
  bool must_sync_ = false;
  uint64_t published_ = 0;  ///< version of the view that everyone was sent

  // Not in the log: what is known again after a while.
  Time started_at_;
  struct Hearing {
    Time last{};
    Time since{};                      ///< without a long pause up to `last`
    std::optional<Time> lost_at = {};  ///< when its stream ended, if nothing came since
    Life life = 0;                     ///< in which it spoke last
    Figures figures = {}, before = {};
    Time figures_at{}, before_at{};
  };
  std::map<NodeId, Hearing> heard_;
  Time heard_any_;
  std::map<Task, Time> given_at_;
  std::map<std::pair<TableId, RangeId>, std::string> snapshot_parts_;
  Time snapshot_moved_at_{};  ///< when a part of it came
  // What becomes of files once the log has the decision.
  std::optional<SnapshotOrder> completed_;
  std::vector<SnapshotOrder> abandoned_;
  Time ordered_at_, complete_again_at_{}, order_again_at_{};
  bool wants_last_ = false, keeps_result_ = false;
};

}  // namespace trireme::ps
