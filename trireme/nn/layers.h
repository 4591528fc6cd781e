#pragma once

#include "trireme/nn/attention.h"
#include "trireme/nn/context_attention.h"
#include "trireme/nn/kv_cache.h"
#include "trireme/nn/linear.h"
#include "trireme/nn/rotary.h"

namespace trireme::nn {

/// Looks up rows of a table by their indices. If it is cut by Vocabulary, each rank has some of the
/// rows; it gives zeros for the others, and the ranks add up their outputs.
class EmbeddingImpl : public LayerImpl {
 public:
  EmbeddingImpl(int64_t rows, int64_t width, double deviation = 1);
  at::Tensor weight;

  /// These rows of a table that is not cut, one range after the other.
  at::Tensor rows(const std::vector<Range>& ranges);

  Layouts layouts(Style style, Sequence sequence) const override;

 protected:
  Flow compute(const Flow& indices) override;
  bool backward_reads_weights() const override { return false; }

 private:
  int64_t rows_, width_;
};
TORCH_MODULE(Embedding);

/// Where a layer's weights are when its output is computed again: still in memory, or perhaps
/// released. Then the layer keeps a copy.
enum class WeightsLater : uint8_t { Stay, MayGo };

/// Normalizes over the last dim. With `passes_input` it returns {normalized, x}: the beginning of a
/// branch of a residual network. Its backward then gets the gradients of both and adds them in one
/// pass over memory.
class LayerNormImpl : public LayerImpl {
 public:
  struct Options {
    double epsilon = 1e-5;
    bool passes_input = false;
  };
  explicit LayerNormImpl(int64_t width) : LayerNormImpl(width, Options{}) {}
  LayerNormImpl(int64_t width, Options options);
  at::Tensor weight, bias;

  /// The output can be computed again from now on (Flow::remake).
  void remake_output(WeightsLater weights) { remakes_ = weights; }

 protected:
  Flow compute(const Flow& in) override;

 private:
  void let_remake(Flow& out, std::vector<at::Tensor> from, decltype(Remake::make) make) const;

  Options options_;
  std::optional<WeightsLater> remakes_;
};
TORCH_MODULE(LayerNorm);

/// Each position attends to itself and to those before it, or to all. One Linear projects to q, k
/// and v: its rows are q of all heads, then k, then v of `kv_heads` heads each. If the two
/// projections are cut by column and by row, each rank has some of the heads. A second tensor is a
/// residual stream, to which the result is added. With `rotary`, q and k turn by their positions,
/// which the Flow tells.
class CausalAttentionImpl : public LayerImpl {
 public:
  struct Options {
    int64_t width = 0, heads = 1, kv_heads = 1;
    int64_t head = 0;    ///< the width of a head; 0: width / heads
    double dropout = 0;  ///< above 0, attention is not fused; its mask is as Dropout's
    Sees sees = Sees::Past;
    double in_deviation = 0.02, out_deviation = 0.02;
    bool in_bias = true, out_bias = true;
    std::shared_ptr<const Rotary> rotary = nullptr;  ///< one for all layers of a model
    std::string in_name = "c_attn", out_name = "c_proj";
  };
  explicit CausalAttentionImpl(const Options& options);

  /// From now on each rank of the region has a part of the positions, and attention is to those of
  /// all. Throws MisuseError, with the numbers, if that is not possible. `nn::cut` calls it.
  void share_sequence(const ContextRegion& region, int64_t tensor_ranks);

  /// Keeps keys and values from now on, for a model that writes a text; nullptr: no longer.
  void set_cache(std::shared_ptr<KvCache> cache) { cache_ = std::move(cache); }
  const std::shared_ptr<KvCache>& cache() const { return cache_; }
  bool sees_past_only() const { return options_.sees == Sees::Past; }
  /// Does a position depend on how long the text is? Then calls at a moving position are refused.
  bool depends_on_length() const {
    return options_.rotary != nullptr &&
           options_.rotary->options().scaling == RotaryScaling::Dynamic;
  }

 protected:
  Flow compute(const Flow& in) override;

 private:
  at::Tensor attend(const Flow& qkv) const;
  at::Tensor attend_alone(const QueryKeyValue& all, const ContextCall& call) const;
  DropoutOfWeights dropout_of(const Flow& qkv, int64_t T, int64_t first_head) const;

  Options options_;
  Linear in_{nullptr}, out_{nullptr};
  std::shared_ptr<KvCache> cache_;
  std::optional<ContextRegion> context_;
};
TORCH_MODULE(CausalAttention);

}  // namespace trireme::nn
