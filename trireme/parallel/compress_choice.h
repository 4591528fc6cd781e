#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "trireme/comm/communicator.h"
#include "trireme/core/json.h"
#include "trireme/parallel/compress_options.h"
#include "trireme/parallel/reducer.h"

namespace trireme::parallel {

/// A block that `auto` has not measured yet.
struct UnmeasuredBlock {
  uint64_t name;
  GradientBlock shapes;  ///< without memory
  at::Device device;
};

/// compress.kind = "auto": what each block is compressed by, or that it is not.
///
///   each candidate   sums the block three times, as it would in a step; the quickest time counts
///   the slowest rank decides how long a candidate takes; the quickest candidate is taken, unless
///   the plain sum takes nearly as long
///
/// It is measured once, at the end of the second step (the first one does not know the order of
/// buckets yet), on memory of its own, and saved with the checkpoint, because another measurement
/// could choose otherwise.
class CompressChoice {
 public:
  /// What `auto` tries: those that cost little precision.
  static std::vector<Compression> candidates();

  std::optional<Compression> find(uint64_t block) const;

  /// Measures all candidates and keeps the quickest. `sum` sums a block of the same shapes and
  /// waits for it. Collective over the group.
  Compression measure(uint64_t block, int64_t bytes, const comm::Communicator& ranks,
                      const std::function<void(Compression)>& sum);

  /// What was chosen since the last call, a line for each block.
  std::string take_news() { return std::exchange(news_, {}); }

  core::Json state() const;
  void restore(const core::Json& saved);

 private:
  std::map<uint64_t, Compression> chosen_;
  std::string news_;
};

}  // namespace trireme::parallel
