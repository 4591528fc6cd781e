#pragma once

#include "trireme/comm/communicator.h"
#include "trireme/compress/compressor.h"
#include "trireme/parallel/packed_block.h"

namespace trireme::parallel {

/// What a compressed sum works with.
struct SumContext {
  /// First rounds go over one group and second rounds over another, each in the order of blocks. So
  /// the second round of a block may start whenever its first has arrived, between the first rounds
  /// of later blocks, and all ranks still start the same operations in the same order.
  comm::Communicator first, second;
  Residuals* residuals = nullptr;  ///< null: without error feedback
  uint64_t seed = 0;
  int64_t step = 0;   ///< updates so far
  int64_t again = 0;  ///< how often the block was summed in this step before (micro-batches)
};

/// A sum that was started: its first round of communication is under way.
class CompressedSum {
 public:
  virtual ~CompressedSum() = default;
  /// Has the round that is under way arrived?
  virtual bool arrived() const = 0;
  /// Waits for the first round, and starts the second if there is one.
  virtual void start_second() = 0;
  /// Waits for the last round and writes the sum.
  virtual void finish() = 0;
};

/// A compressor of bytes.
struct ByteCompressor {
  std::shared_ptr<const compress::Compressor> there;
  /// For a sum of so many elements that nothing of it is lost on the way back; without it sums are
  /// encoded as gradients are, and what that loses is a residual of the owner.
  using Exact = std::function<std::shared_ptr<const compress::Compressor>(int64_t elements)>;
  Exact exact_back = {};
};

/// Byte compressors: slices travel to their owners, who add them up and send back the sum. See
/// sliced_sum.cpp.
std::unique_ptr<CompressedSum> start_sliced_sum(GradientBlock block, const SumContext& context,
                                                ByteCompressor compressor);

/// The same few elements of every rank, chosen at random. See random_sum.cpp.
std::unique_ptr<CompressedSum> start_random_sum(GradientBlock block, const SumContext& context,
                                                double ratio);

/// The factors that PowerSGD keeps from step to step, by the key of a place: of an [n, m] matrix
/// the [m, rank] factor Q.
class LowRankFactors {
 public:
  LowRankFactors(int64_t rank, double min_saving, uint64_t seed)
      : rank_(rank), min_saving_(min_saving), seed_(seed) {}

  /// Is a gradient of this shape so many times smaller as two factors? Others travel as they are.
  bool fits(const GradientPlace& place) const;
  void add(const GradientPlacePtr& place);
  at::Tensor now(const GradientPlace& place) const;
  /// The factor of the next step: takes the place of this one if the update is made.
  void set_next(const GradientPlace& place, at::Tensor next);
  void settle();
  void undo_step();
  std::vector<ReducerState> states() const;
  /// The columns of both factors: no matrix has a higher rank than its smaller side.
  int64_t rank_of(const GradientPlace& place) const;

 private:
  struct Factor {
    GradientPlacePtr place;
    at::Tensor now, next;
  };
  int64_t rank_;
  double min_saving_;
  uint64_t seed_;
  std::map<std::string, Factor> factors_;
};

/// A gradient seen as a matrix: its first dim by all others.
std::pair<int64_t, int64_t> matrix_of(const GradientPlace& place);

/// PowerSGD. See low_rank_sum.cpp.
std::unique_ptr<CompressedSum> start_low_rank_sum(GradientBlock block, const SumContext& context,
                                                  LowRankFactors& factors);

}  // namespace trireme::parallel
