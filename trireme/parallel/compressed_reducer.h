#pragma once

#include <deque>
#include <map>
#include <optional>

#include "trireme/parallel/compress_choice.h"
#include "trireme/parallel/compress_options.h"
#include "trireme/parallel/compressed_sum.h"

namespace trireme::parallel {

/// Sums gradients in fewer bytes, and adds what was not sent to the gradients of the next step.
///
///   block ──┬─ kept by a pattern, or too small for PowerSGD ──> the inner reducer, as they are
///           └─ the rest ──> packed ──> a CompressedSum: encode and send, now
///                                                       second round: when a later block starts
///                                                       sum: in StartedSum::wait
///
/// Blocks without members (late gradients, copies, tied weights) go to the inner reducer, as do all
/// blocks of the warm-up and of a step that is known to have no weight. Encoding runs on the thread
/// that runs backward; sending runs beside it. Sums add in rank order, so timing changes nothing.
class CompressedReducer final : public Reducer {
 public:
  /// Throws MisuseError for options that are out of range.
  CompressedReducer(const std::shared_ptr<Reducer>& inner, CompressOptions options);

  /// Throws MisuseError, naming the parameter, if its gradient is neither float32 nor float64.
  void announce(const std::vector<GradientPlacePtr>& places, const RankSet& over,
                int lane) override;
  StartedSum start(GradientBlock block, const RankSet& over) override;
  void expect(const ExpectedStep& step) override;
  void end_step(double weight) override;
  void undo_step() override;
  void advance() override;
  std::vector<ReducerState> states() override;
  core::Json state() override;
  void restore(const core::Json& saved) override;
  std::string take_news() override { return choice_.take_news(); }

  /// The memory that it keeps from step to step.
  int64_t memory_bytes() const { return residuals_.memory_bytes(); }

 private:
  struct Pending {
    std::unique_ptr<CompressedSum> sum;
    StartedSum kept;  // what the inner reducer sums of the block
    std::function<void()> put_kept;
    bool second = false;
  };
  struct Lane {  // the blocks of one group, in their order
    std::optional<comm::Communicator> first, second;
    std::deque<std::shared_ptr<Pending>> pending;
  };

  bool is_compressed(const GradientPlace& place) const;
  void settle();
  std::optional<Compression> kind_for(const GradientBlock& block, const RankSet& over, Lane& lane);
  SumContext context_of(const GradientBlock& block, const RankSet& over, const Lane& lane);
  void start_kept(GradientBlock& block, const RankSet& over, Pending& pending);
  std::unique_ptr<CompressedSum> start_sum(GradientBlock block, const SumContext& context,
                                           Compression kind);
  static void start_second(Pending& one);
  static void advance(Lane& lane);
  void wait_in_all_lanes(const Lane& waited, const Pending& one);
  void finish(Lane& lane, const std::shared_ptr<Pending>& one);

  std::shared_ptr<Reducer> inner_;
  const CompressOptions options_;
  Residuals residuals_;
  LowRankFactors factors_;
  std::map<std::pair<Compression, int>, ByteCompressor> compressors_;  // for so many ranks
  CompressChoice choice_;
  std::map<std::pair<RankSet, int>, Lane> lanes_;
  std::map<uint64_t, int64_t> again_;  // of each block of this step
};

/// Sums compressed as the options say; plain sums if they say none.
std::shared_ptr<Reducer> make_reducer(const Mesh& mesh, const CompressOptions& options);

}  // namespace trireme::parallel
