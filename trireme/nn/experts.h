#pragma once

#include "trireme/nn/dispatch.h"
#include "trireme/nn/layer.h"

namespace trireme::nn {

/// The experts of a mixture: as many feed-forward networks of the same sizes, without biases. They
/// take {x, weights, choice}, as a Router gives the last two, and return for each token the
/// weighted sum of its experts' results. `up` is [experts, ffn, width], or with SwiGLU `gate_up`
/// [experts, 2 ffn, width]; `down` is [experts, width, ffn].
///
/// Cut as Expert, each rank of the expert axis has some of the experts, and tokens travel:
///
///   {x, weights, choice} ─> enter ─> dispatch ─> experts ─> combine ─> leave
///                           (tensor) (expert)    (tensor: a part of the ffn)
class ExpertsImpl : public LayerImpl {
 public:
  struct Options {
    int64_t width = 0, ffn = 0, experts = 0;
    bool gated = false;  ///< SwiGLU, instead of GELU (tanh form)
    double dropout = 0;  ///< of what is inside of an expert: the same on every mesh
    double in_deviation = 0, out_deviation = 0;  ///< of initial weights; 0: torch's rule
    /// Half of the tokens travel while the experts of the other half compute.
    bool overlaps = false;
  };
  explicit ExpertsImpl(Options options);

  at::Tensor up, down;

  const Options& options() const { return options_; }
  Layouts layouts(Style style, Sequence sequence) const override;

 protected:
  Flow compute(const Flow& in) override;

 private:
  struct Tokens {  // of one rank: x, weights and choice, [tokens, ...]; their places, for dropout
    at::Tensor x, weights, choice, places;
    int64_t step = 0;
  };
  at::Tensor mixed(const Tokens& all) const;
  at::Tensor mixed_in_halves(const Tokens& all) const;
  at::Tensor inside(const Tokens& all, Dispatched& sent) const;
  at::Tensor dropped_out(const at::Tensor& h, const Tokens& all, const Dispatched& sent) const;
  const comm::Communicator* ranks() const;
  const char* up_name() const { return options_.gated ? "gate_up" : "up"; }

  Options options_;
};
TORCH_MODULE(Experts);

/// x W[e]^T for rows that are sorted by expert: `counts[e]` of them belong to expert e. x is [rows,
/// in], weight [experts, out, in]. Differentiable; an expert without rows has the gradient 0.
at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& weight,
                          const std::vector<int64_t>& counts);

}  // namespace trireme::nn
