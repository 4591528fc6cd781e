#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trireme/cuda/rotary.h"
#include "trireme/layout/positions.h"

namespace trireme::nn {

/// Which elements of a head rotate together: x[i] with x[i + D / 2], as in Hugging Face's
/// checkpoints, or x[2 i] with x[2 i + 1], as in the paper and in Meta's.
enum class RotaryPairs : uint8_t { Halves, Neighbours };

/// How positions reach beyond those that a model was trained on.
enum class RotaryScaling : uint8_t { None, Linear, Dynamic, Yarn, Llama3 };

struct RotaryOptions {
  int64_t head = 0;  ///< the width of a head
  double theta = 10000;
  RotaryPairs pairs = RotaryPairs::Halves;
  RotaryScaling scaling = RotaryScaling::None;
  double factor = 1, low = 1, high = 4;  ///< the last two are Llama3's
  int64_t trained_on = 0;                ///< positions before scaling
};

/// How far each pair of a head turns from one position to the next, and a factor of the result.
struct RotaryFrequencies {
  std::vector<double> radians;
  double amplitude = 1;
};

/// The frequencies of sequences of `length` positions, by the formulas of Hugging Face's
/// transformers: only Dynamic depends on the length. Pair i turns by f = theta^(-2 i / D), and
///
///   Linear    by f / factor
///   Dynamic   with a larger theta, so that the slowest pair turns as far over the whole length as
///             it did over `trained_on` ("NTK"); as without scaling if the length is not beyond
///   Llama3    by f / factor where a turn takes more than trained_on / low positions, by f where it
///             takes less than trained_on / high, and by something between them elsewhere
///   Yarn      the same with 1 turn and 32 turns, as a ramp over i; results are longer, by
///             0.1 ln(factor) + 1 (Peng et al. 2023)
RotaryFrequencies rotary_frequencies(const RotaryOptions& options, int64_t length);

/// Rotary positions (Su et al. 2021): the heads of q and k at position t turn by t times their
/// frequencies, so that their products depend on distances alone.
class Rotary {
 public:
  explicit Rotary(RotaryOptions options);
  const RotaryOptions& options() const { return options_; }

  /// What turns q and k of the projection [B, T, (q + 2 kv) D] at these positions.
  cuda::RotaryHeads heads(const at::Tensor& qkv, const Positions& positions, int64_t q,
                          int64_t kv) const;
  /// The same at one position that only the device knows, less than `end`. The tables then stay
  /// where they are until `end` grows. Throws MisuseError where the tables depend on the length.
  cuda::RotaryHeads heads_at(const at::Tensor& moving, int64_t end, const at::Tensor& qkv,
                             int64_t q, int64_t kv) const;

 private:
  void make_tables(int64_t positions, int64_t length, const at::TensorOptions& like) const;
  void require_tables(int64_t end, const at::Tensor& qkv) const;

  RotaryOptions options_;
  // The tables of the last call, and the length of a sequence that they are for. Training always
  // finds them again, so that the address in a recorded step of a GPU stays good.
  mutable at::Tensor cosines_, sines_;
  mutable int64_t length_ = 0;
  // Their rows at the positions of the last call, if these were several ranges.
  mutable Positions picked_;
  mutable at::Tensor picked_cosines_, picked_sines_;
};

/// q and k of a projection turned, differentiable. It writes into the memory of `qkv`, which nobody
/// else may need any more: the output of a Linear.
at::Tensor turned(const at::Tensor& qkv, const cuda::RotaryHeads& heads);

/// The same into new memory, or turned back if `sign` is -1; not differentiable.
at::Tensor turned_copy(const at::Tensor& qkv, const cuda::RotaryHeads& heads, double sign);

}  // namespace trireme::nn
