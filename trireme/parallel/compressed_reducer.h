#pragma once

#include <map>
#include <optional>

#include "trireme/parallel/compress_choice.h"
#include "trireme/parallel/compress_options.h"
#include "trireme/parallel/sum_thread.h"

namespace trireme::parallel {

/// Sums gradients in fewer bytes, and adds what was not sent to the gradients of the next step.
///
///   block ──┬─ kept by a pattern, repeated, small ──> the inner reducer, as they are
///           └─ the rest ──> packed ──> a CompressedSum, on a SumThread: encode, send, decode
///
/// Blocks without members (late gradients, copies, tied weights) go to the inner reducer, as do all
/// blocks of the warm-up and of a step that is known to have no weight. Sums add in rank order, so
/// timing changes nothing.
///
/// While sums are under way, only the SumThread uses residuals and factors; between steps there are
/// none, and only the caller does.
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
  void drop_step() override;
  std::vector<ReducerState> states() override;
  core::Json state() override;
  void restore(const core::Json& saved) override;
  std::string take_news() override { return choice_.take_news(); }

  /// The memory that it keeps from step to step.
  int64_t memory_bytes() const { return residuals_.memory_bytes(); }

 private:
  struct Lane {  // the groups of both rounds: only the SumThread uses them in a step
    std::optional<comm::Communicator> first, second;
    std::vector<UnmeasuredBlock> unmeasured;  // `auto` chooses for them when the step ends
  };
  struct Kept {  // what the inner reducer sums of a block
    StartedSum sum;
    std::function<void()> put;
  };

  bool is_compressed(const GradientPlace& place) const;
  void settle();
  std::optional<Compression> kind_for(const GradientBlock& block, Lane& lane);
  void measure(const UnmeasuredBlock& one, const RankSet& over, const Lane& lane);
  SumContext context_of(const GradientBlock& block, const Lane& lane);
  Kept start_kept(GradientBlock& block, const RankSet& over);
  SumThread::Begin sum_of(GradientBlock block, const SumContext& context, Compression kind);

  std::shared_ptr<Reducer> inner_;
  const CompressOptions options_;
  Residuals residuals_;
  LowRankFactors factors_;
  std::map<std::pair<Compression, int>, ByteCompressor> compressors_;  // for so many ranks
  CompressChoice choice_;
  std::map<std::pair<RankSet, int>, Lane> lanes_;
  std::map<uint64_t, int64_t> again_;  // of each block of this step
  SumThread thread_;                   // last: it uses the others
};

/// Sums compressed as the options say; plain sums if they say none.
std::shared_ptr<Reducer> make_reducer(const Mesh& mesh, const CompressOptions& options);

}  // namespace trireme::parallel
