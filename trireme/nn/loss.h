#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>

#include <type_traits>
#include <utility>

#include "trireme/comm/communicator.h"
#include "trireme/layout/even_part.h"

namespace trireme::nn {

/// A loss is a sum and the weight that it stands for: tokens or samples that counted. Gradients are
/// sums too, and are divided once, by the total weight of all ranks and micro-batches: so that
/// uneven batches, masked labels and ranks with nothing to do give the gradient of one process.
///
///   replicas.backward({errors.sum(), x.size(0)});
struct Loss {
  at::Tensor sum;     ///< 0-dim, in the graph
  at::Tensor weight;  ///< 0-dim, float64, not in the graph

  Loss() = default;
  Loss(at::Tensor the_sum, at::Tensor the_weight)
      : sum(std::move(the_sum)), weight(std::move(the_weight)) {}
  /// The weight as a number.
  template <class Number>
  requires std::is_arithmetic_v<Number> Loss(at::Tensor the_sum, Number the_weight)
      : sum(std::move(the_sum)),
        weight(at::scalar_tensor(static_cast<double>(the_weight), at::kDouble)) {}
};

/// Targets of this value count for nothing.
constexpr int64_t kIgnored = -100;

/// Cross-entropy in nats of [rows, classes] logits.
Loss cross_entropy(const at::Tensor& logits, const at::Tensor& targets);

/// Who else has logits: the ranks over which the classes are cut, and this rank's classes.
struct Classes {
  Part mine;
  int64_t all = 0;
  const comm::Communicator* group = nullptr;  ///< nullptr: nobody
};

/// Rows whose logits are in memory at a time.
struct Chunks {
  int64_t rows = 1;
  /// May a chunk look at its values to save work? On a GPU the host would wait for each.
  bool may_look = true;
};

/// On the CPU about 4 MiB of float32 logits, which stay in its cache; elsewhere 256 MiB, so that
/// kernels are few and large. The same on every rank, though their classes may differ by one: each
/// chunk is a collective.
Chunks chunks_of(c10::DeviceType device, int64_t classes, int ranks, int64_t item_bytes);

/// Cross-entropy of x W^T + b, without the logits ever being whole: by chunks of rows, the
/// gradients computed on the way; where the classes are cut no rank sees another's. x is [...,
/// width], W this rank's [classes, width], b its [classes] or undefined, targets [...] of all
/// classes. The gradient of x is this rank's part of the sum. (Gradients of these gradients are
/// refused: take cross_entropy of logits where they are wanted.)
Loss linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& targets, const Classes& classes);
/// The same in chunks of one's own.
Loss linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& targets, const Classes& classes, Chunks chunks);
/// The same on one rank.
Loss linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets);

}  // namespace trireme::nn
