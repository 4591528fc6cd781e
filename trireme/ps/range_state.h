#pragma once

#include <algorithm>
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
  struct Image {
    std::string fields;  ///< all but the values
    StorageImage storage;
    /// As one message.
    Frame frame() const;
    /// Throws CommError for bytes that are no image.
    static Image parse(const Frame& frame);
  };

  explicit RangeState(const Place& place) : RangeState(place, Begins::WithFirstValues) {}
  /// As `load`, but cheaper.
  RangeState(const Place& place, const Image& image);

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

  /// Whether a worker at this clock would see all that it must of the others.
  bool can_read(Clock clock) const;
  /// Whether what this worker has pushed at earlier clocks is here. A push that was lost on its way
  /// may come after a pull that was sent later.
  bool has_own_writes(const RequestId& reader, Clock clock) const;
  Payload read(const std::vector<uint64_t>& keys) const { return storage_->read(keys); }

  /// Lockstep: whether all pushes of clock round() are here, and the squares of their sum.
  bool is_whole() const;
  double squares() const;  ///< 0 where nothing is clipped
  Clock round() const { return round_; }
  /// Of the clock before round().
  double last_squares() const { return last_squares_; }
  /// Lockstep: the sums of a clock that was applied a short while ago; else zeros. A worker that
  /// repeats a task finds those of all its clocks.
  ClockTotals totals_of(Clock clock) const;

  /// A snapshot that must be taken now, before the next entry.
  std::optional<uint64_t> snapshot_due() const;
  void snapshot_taken();
  uint64_t last_snapshot() const { return saved_; }
  const SnapshotOrder& snapshot_order() const { return order_; }

  uint64_t version() const { return version_; }
  uint64_t workers_version() const { return workers_version_; }
  const IntervalSet& applied() const { return applied_; }
  /// How many updates lie between the pull that a push came of and now.
  uint64_t missed(const Request& request) const {
    return version_ - std::min(version_, request.read_version);
  }
  const Storage& storage() const { return *storage_; }

  /// All of it as it is now; see StorageImage.
  Image image() const;
  /// Throws CommError for an image that is not of such a range.
  void load(const Image& image);
  /// Takes the batches that are in an image's values, and nothing else of it: for another job.
  void adopt_batches(std::string_view fields);

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
  RangeState(const Place& place, Begins begins);
  template <class Archive>
  void fields(Archive& archive);
  Judgement judge_push(const Request& request, const Progress& progress) const;
  size_t pushed_bytes(const Request& request) const;
  Payload unfiltered(const Request& request) const;
  std::vector<Gradient> pending_gradients(std::vector<Payload>& kept) const;
  void apply_push(Request request);
  void apply_round(const Entry& entry);
  void remember(const ClockTotals& totals);
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
  std::vector<ClockTotals> totals_;  ///< of the clocks before round_, the newest last
  SnapshotOrder order_;
  uint64_t saved_ = 0;
};

}  // namespace trireme::ps
