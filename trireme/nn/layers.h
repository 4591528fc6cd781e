#pragma once

#include "trireme/nn/layer.h"

namespace trireme::nn {

/// y = x W^T + b.
class LinearImpl : public LayerImpl {
 public:
  struct Options {
    bool bias = true;
    double deviation = 0;  ///< of the initial weights; 0: torch's rule, uniform in +-1/sqrt(in)
  };
  LinearImpl(int64_t in, int64_t out);
  LinearImpl(int64_t in, int64_t out, Options options);

  at::Tensor weight, bias;  ///< public, as in torch::nn::LinearImpl; bias may be undefined

 protected:
  at::Tensor compute(const at::Tensor& x, const Where* where) override;
  using LayerImpl::compute;
};
TORCH_MODULE(Linear);

/// Rows of a table, by number.
class EmbeddingImpl : public LayerImpl {
 public:
  EmbeddingImpl(int64_t rows, int64_t width, double deviation = 1);
  at::Tensor weight;

 protected:
  at::Tensor compute(const at::Tensor& indices, const Where* where) override;
  using LayerImpl::compute;
};
TORCH_MODULE(Embedding);

/// Over the last dim.
class LayerNormImpl : public LayerImpl {
 public:
  explicit LayerNormImpl(int64_t width, double epsilon = 1e-5);
  at::Tensor weight, bias;

 protected:
  at::Tensor compute(const at::Tensor& x, const Where* where) override;
  using LayerImpl::compute;

 private:
  double epsilon_;
};
TORCH_MODULE(LayerNorm);

/// Whether element e of sample s is dropped at a step is a function of (seed, layer, step, s, e):
/// the same for every way of cutting the batch, and again when it is recomputed.
class DropoutImpl : public LayerImpl {
 public:
  explicit DropoutImpl(double probability);

 protected:
  at::Tensor compute(const at::Tensor& x, const Where* where) override;
  using LayerImpl::compute;

 private:
  double probability_;
};
TORCH_MODULE(Dropout);

/// The mask of such a dropout for `rows` samples of `elems` elements each: 0, or 1 / (1 - p).
/// `first` is the logical number of a row's first element.
at::Tensor dropout_mask(const LayerImpl& layer, const Where* where, double probability,
                        at::IntArrayRef shape, int64_t first, const at::TensorOptions& options);

/// Each position attends to itself and those before it. The projection of q, k and v is one Linear:
/// rows of q for all heads, then k, then v, for `kv_heads` heads each.
class CausalAttentionImpl : public LayerImpl {
 public:
  struct Options {
    int64_t width = 0, heads = 1, kv_heads = 1;
    double dropout = 0;  ///< over 0 takes the unfused path, with a logical mask
    double in_deviation = 0.02, out_deviation = 0.02;
  };
  explicit CausalAttentionImpl(const Options& options);

 protected:
  at::Tensor compute(const at::Tensor& x, const Where* where) override;
  using LayerImpl::compute;

 private:
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const Where* where) const;

  Options options_;
  Linear c_attn{nullptr}, c_proj{nullptr};
};
TORCH_MODULE(CausalAttention);

}  // namespace trireme::nn
