#pragma once

#include "trireme/nn/linear.h"

namespace trireme::nn {

/// Rows of a table, by number. Cut by Vocabulary each rank has some of the rows, and the ranks add
/// up what they found.
class EmbeddingImpl : public LayerImpl {
 public:
  EmbeddingImpl(int64_t rows, int64_t width, double deviation = 1);
  at::Tensor weight;

  /// Rows [begin, begin + count), of a table that is not cut.
  at::Tensor rows(int64_t begin, int64_t count);

  std::map<std::string, Layout> layouts(Style style, Sequence sequence) const override;

 protected:
  Flow compute(const Flow& indices) override;

 private:
  int64_t rows_, width_;
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

/// Each position attends to itself and those before it. The projection of q, k and v is one Linear:
/// rows of q for all heads, then k, then v, for `kv_heads` heads each. Its two projections may be
/// cut by column and by row: a rank then has some of the heads.
class CausalAttentionImpl : public LayerImpl {
 public:
  struct Options {
    int64_t width = 0, heads = 1, kv_heads = 1;
    double dropout = 0;  ///< over 0 takes the unfused path, with a logical mask
    double in_deviation = 0.02, out_deviation = 0.02;
  };
  explicit CausalAttentionImpl(const Options& options);

 protected:
  Flow compute(const Flow& in) override;

 private:
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const Where* where, int64_t first_head) const;

  Options options_;
  Linear c_attn{nullptr}, c_proj{nullptr};
};
TORCH_MODULE(CausalAttention);

}  // namespace trireme::nn
