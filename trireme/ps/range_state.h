#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/ps/interval_set.h"
#include "trireme/ps/protocol.h"
#include "trireme/ps/storage.h"

namespace trireme::ps {

/// One range of one table: its values, the batches that are in them, and the clocks of the workers.
/// It is a function of its entries: servers that apply the same entries have the same bits.
///
///   Stale, Free   Push      applied as it comes, unless its batch is in already
///   Lockstep      Push      kept until all lanes of the clock are there (whole)
///                 Round     applies the sum of the clock, once all ranges of the job are whole
///
/// Why a round waits for the other ranges: a worker that dies half-way through its pushes starts
/// the clock again and must read what it read before, from every range.
class RangeState {
 public:
  explicit RangeState(const Place& place);

  enum class Verdict { Apply, Retry, Refuse };
  struct Judgement {
    Verdict verdict = Verdict::Apply;
    bool repeated = false;  ///< Apply moves the clock only: another worker did this batch
    Reason reason = Reason::BadRequest;
    std::string sentence = {};
  };
  /// What the head of the chain does with a request. Changes nothing.
  Judgement judge(const Request& request) const;

  /// The sentence that refuses keys or values of another shape; empty if they fit.
  std::string shape_error(const Request& request) const;

  void apply(Entry entry);

  /// Whether a worker at this clock would see all that it must.
  bool can_read(Clock clock) const;
  std::string read(const std::vector<uint64_t>& keys) const { return storage_->read(keys); }

  /// Lockstep: whether all pushes of clock round() are here, and the squares of their sum.
  bool is_whole() const;
  double squares() const;  ///< 0 where nothing is clipped
  Clock round() const { return round_; }
  /// Of the clock before round().
  double last_squares() const { return last_squares_; }

  /// A snapshot that must be taken now, before the next entry.
  std::optional<uint64_t> snapshot_due() const;
  void snapshot_taken();
  uint64_t last_snapshot() const { return saved_; }
  const SnapshotOrder& snapshot_order() const { return order_; }

  uint64_t version() const { return version_; }
  uint64_t workers_version() const { return workers_version_; }
  const IntervalSet& applied() const { return applied_; }
  /// How many updates lay between a pull and the push that came of it -> number of pushes.
  const std::map<uint64_t, uint64_t>& staleness() const { return staleness_; }
  const Storage& storage() const { return *storage_; }

  std::string save() const;
  /// Throws CommError for bytes that are no such range.
  void load(std::string_view bytes);

 private:
  struct Progress {
    Life life = 0;
    Clock start = 0;  ///< of this life
    Clock clock = 0;  ///< the next that it will push
    template <class Archive>
    void fields(Archive& archive) {
      archive(life, start, clock);
    }
  };
  template <class Archive>
  void fields(Archive& archive);
  Judgement judge_push(const Request& request, const Progress& progress) const;
  void apply_push(Request request);
  void apply_round(const Entry& entry);
  void apply_workers(const Entry& entry);

  Place place_;
  bool lockstep_;
  std::unique_ptr<Storage> storage_;
  IntervalSet applied_;
  std::map<uint32_t, Progress> workers_;
  uint64_t workers_version_ = 0;
  uint64_t version_ = 0;
  Clock round_ = 0;
  std::map<uint32_t, Request> pending_;  ///< pushes of clock round_, by lane
  double last_squares_ = 0;
  SnapshotOrder order_;
  uint64_t saved_ = 0;
  std::map<uint64_t, uint64_t> staleness_;
};

}  // namespace trireme::ps
