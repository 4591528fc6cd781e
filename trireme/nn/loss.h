#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>

#include <type_traits>
#include <utility>

#include "trireme/comm/communicator.h"
#include "trireme/layout/even_range.h"

namespace trireme::nn {

/// A loss is a sum and its weight, the number of tokens or samples that it sums. Gradients are sums
/// too, and are divided once, by the total weight of all ranks and micro-batches. So uneven
/// batches, masked labels and ranks without data give the same gradient as one process.
///
///   replicas.backward({errors.sum(), x.size(0)});
struct Loss {
  at::Tensor sum;     ///< 0-dim, in the graph
  at::Tensor weight;  ///< 0-dim, float64, not in the graph
  /// In evaluation, of a model that chooses a class: the number of right choices, as `weight`.
  at::Tensor correct = {};

  Loss() = default;
  Loss(at::Tensor the_sum, at::Tensor the_weight)
      : sum(std::move(the_sum)), weight(std::move(the_weight)) {}
  /// The weight as a number.
  template <class Number>
  requires std::is_arithmetic_v<Number> Loss(at::Tensor the_sum, Number the_weight)
      : sum(std::move(the_sum)),
        weight(at::scalar_tensor(static_cast<double>(the_weight), at::kDouble)) {}
};

/// Targets of this value do not count.
constexpr int64_t kIgnored = -100;

/// Cross-entropy in nats of [rows, classes] logits.
Loss cross_entropy(const at::Tensor& logits, const at::Tensor& targets);

/// This rank's shard of the classes.
struct ClassShard {
  Range mine;
  int64_t all = 0;                            ///< the number of all classes
  const comm::Communicator* group = nullptr;  ///< the ranks that share them; nullptr: this one only
};

/// How a loss is computed chunk by chunk, so that few logits are in memory at a time.
struct LossChunks {
  int64_t rows = 1;
  /// May the host look at a chunk's values to save work? On a GPU it would have to wait for them.
  bool may_look = true;
};

/// On the CPU about 4 MiB of float32 logits, which stay in its cache; elsewhere 1 GiB, so that
/// kernels are few and large. The same on every rank, even if ranks differ by one class, because
/// each chunk is a collective.
LossChunks loss_chunks(c10::DeviceType device, int64_t classes, int ranks, int64_t item_bytes);

/// The rows of each chunk, at most `most`, so that all chunks are about as large: the CPU's chunks
/// are not.
int64_t even_chunk(int64_t rows, int64_t most);

/// Cross-entropy of x W^T + b that never holds all logits in memory: it works by chunks of rows,
/// and computes the gradients together with the loss. If the classes are cut, no rank sees the
/// logits of another. x is [..., width], W [classes, width] and b [classes] (or undefined) of this
/// rank's classes, targets [...] among all classes. The gradient of x is this rank's part of the
/// sum. Throws if these gradients are differentiated; use cross_entropy of logits for that.
///
/// In 16 bits the matrix products are rounded, and everything between them is float32: logits,
/// softmax, the loss and its sum. `scale` is `Where::loss_scale`: gradients are multiplied by it
/// before they are rounded, and backward, which starts from the same number, multiplies by the
/// quotient of the two.
Loss linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& targets, const ClassShard& classes,
                          const at::Tensor& scale = {});
/// The same with explicit chunks.
Loss linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& targets, const ClassShard& classes, LossChunks chunks,
                          const at::Tensor& scale = {});
/// The same on one rank.
Loss linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets);

}  // namespace trireme::nn
