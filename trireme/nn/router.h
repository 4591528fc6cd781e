#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/nn/layer.h"

namespace trireme::nn {

/// How the experts of a layer were used in one step, by all ranks together.
struct ExpertLoad {
  std::string layer;
  std::vector<double> tokens;  ///< that chose each expert
  double dropped = 0;          ///< choices for which the expert had no room
  double balance = 0, z = 0;   ///< the auxiliary losses, as means over what counts in the loss
};

/// Chooses experts for tokens: x [rows, positions, width] becomes {weights, choice}, each [rows,
/// positions, top_k]. Scores are computed in float32 at least.
///
///   logits   x W^T, one for each expert
///   scores   softmax, or the sigmoid of each
///   choice   the top_k highest of scores + bias, of the best groups only; kDropped where the
///   expert
///            has no room left
///   weights  the scores of the chosen, normalised or not, times `scale`
///
/// The bias is there only for the choice. It moves by `bias_rate` after a step, against the load of
/// the whole step over all ranks (Wang et al. 2024): whatever attaches to the model does that.
///
/// Two losses of the router's own can be added to that of the model. For a sequence of n positions
/// that counts w in the loss (Where::row_weights):
///
///   balance   w E sum_e f_e P_e         f_e: the part of its choices that fell on expert e;
///                                       P_e: the mean of its probabilities (Fedus et al. 2022)
///   z         w mean(logsumexp(logits)^2)          (Zoph et al. 2022)
///
/// Neither depends on how sequences are cut: counts are summed over the ranks that share one before
/// they are multiplied. A capacity is counted for each sequence and expert: earlier positions win.
class RouterImpl : public LayerImpl {
 public:
  enum class Score : uint8_t { Softmax, Sigmoid };
  struct Options {
    int64_t width = 0, experts = 0, top_k = 1;
    Score score = Score::Softmax;
    bool normalised = false;  ///< the weights of a token add up to `scale`
    double scale = 1;
    /// Groups of experts, of which a token chooses the best: by their highest score (DeepSeek-V2),
    /// or with biases by the sum of their two highest (DeepSeek-V3).
    int64_t groups = 1, top_groups = 1;
    bool biased = false;  ///< balances by biases
    double bias_rate = 0.001;
    double balance = 0, z_loss = 0;  ///< weights of the losses
    /// In training an expert takes at most this multiple of an even share of a sequence's choices;
    /// 0: all.
    double capacity = 0;
    double deviation = 0.02;  ///< of the initial weights
  };
  explicit RouterImpl(Options options);

  at::Tensor weight;
  at::Tensor bias;  ///< a buffer; undefined without biases

  const Options& options() const { return options_; }

  /// The sums of this rank since the last call, [experts + 4]: the tokens of each expert, dropped,
  /// balance, z, what counts in the loss. They start at zero again.
  at::Tensor take_sums();
  /// Takes these sums of all ranks: moves the biases, and remembers the load.
  void end_step(const at::Tensor& sums);
  /// Of the last step; empty before.
  const std::optional<ExpertLoad>& load() const { return load_; }

 protected:
  Flow compute(const Flow& in) override;

 private:
  at::Tensor choose(const at::Tensor& scores) const;
  at::Tensor best_groups_only(const at::Tensor& scores) const;
  at::Tensor with_capacity(const Flow& in, const at::Tensor& choice);
  at::Tensor own_loss(const Flow& in, const at::Tensor& logits, const at::Tensor& scores,
                      const at::Tensor& choice);
  at::Tensor sum_over_sequence(const Flow& in, at::Tensor counts) const;
  bool reports(const Flow& in) const;
  bool is_first() const;
  void count(const at::Tensor& sums);

  Options options_;
  at::Tensor sums_;
  std::optional<ExpertLoad> load_;
};
TORCH_MODULE(Router);

/// x, through which a loss of a layer's own enters: in backward the loss gets the gradient `scale`
/// (Where::loss_scale), or 1 if that is undefined.
at::Tensor add_loss(const at::Tensor& x, const at::Tensor& loss, const at::Tensor& scale);

/// The routers below a module, in the order of registration.
std::vector<RouterImpl*> routers_of(const torch::nn::Module& root);

/// Ends a step of all routers below a module: sums what they counted over all ranks, and moves
/// their biases. Collective over the ranks, which must run the same routers.
void end_step_of_routers(const torch::nn::Module& root, const comm::Communicator& ranks);

}  // namespace trireme::nn
