// What an asynchronous pipeline is meant to compute, on one process: the delays are applied here
// explicitly, to a model that is not cut.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "support/cuts.h"
#include "trireme/nn/bind.h"

namespace trireme::test {

/// The papers' delay of a stage, in updates: P stages, M micro-batches a step.
///
///   pipedream        ceil((P - 1 - r) / M): M = 1 is the paper's, W(t - 1 - (P - 1 - r))
///   vertical sync    that of the first stage, on all of them
///   pipedream-2bw    1 on all of them
inline int delay_in_paper(const config::Config& config, int ranks, int stage, int micros) {
  if (config.pipeline.schedule == "pipedream-2bw") return 1;
  const int behind = ranks - 1 - (config.pipeline.vertical_sync ? 0 : stage);
  return (behind + micros - 1) / micros;
}

/// SGD with momentum and AdamW as their papers write them.
class PlainOptimizer {
 public:
  explicit PlainOptimizer(const config::Optim& with) : keys_(with) {}

  void step(const std::string& name, at::Tensor& weight, const at::Tensor& gradient, double rate) {
    const double decay = weight.dim() >= 2 ? keys_.weight_decay : 0;
    State& state = states_[name];
    ++state.steps;
    const auto moving = [&](at::Tensor& average, const at::Tensor& now, double kept, double added) {
      average = average.defined() ? average * kept + now * added : now * added;
    };
    if (keys_.kind == config::OptimizerKind::Sgd) {
      moving(state.first, gradient + decay * weight, keys_.momentum, 1);
      weight = weight - rate * state.first;
      return;
    }
    const double beta1 = keys_.betas[0], beta2 = keys_.betas[1];
    moving(state.first, gradient, beta1, 1 - beta1);
    moving(state.second, gradient.square(), beta2, 1 - beta2);
    const at::Tensor mean = state.first / (1 - std::pow(beta1, state.steps)),
                     square = state.second / (1 - std::pow(beta2, state.steps));
    weight = weight * (1 - rate * decay) - rate * mean / (square.sqrt() + keys_.eps);
  }

 private:
  struct State {
    at::Tensor first, second;
    int steps = 0;
  };
  const config::Optim keys_;
  std::map<std::string, State> states_;
};

/// Trains with delayed weights: step t computes its gradient at W(t - 1 - delay), the delay of each
/// parameter being that of its stage, and applies it to W(t - 1).
inline Outcome train_delayed(const Case& c, const config::Config& config,
                             const std::map<std::string, int>& delay_of, int steps) {
  const auto model = models::make_model(config, mesh_of_one());
  nn::move_to(*model, at::kDouble, at::kCPU);
  nn::initialize(*model, static_cast<uint64_t>(config.run.seed));
  const Labelled data(c);
  const data::Order order(3, data.size(), c.batch);
  PlainOptimizer optimizer(config.optim);
  Outcome outcome;
  std::vector<std::map<std::string, at::Tensor>> versions(1);
  for (const auto& item : model->named_parameters())
    versions[0][item.key()] = item.value().detach().clone();
  for (int step = 1; step <= steps; ++step) {
    {
      const torch::NoGradGuard guard;
      for (auto& item : model->named_parameters()) {
        const int version = std::max(0, step - 1 - delay_of.at(item.key()));
        item.value().copy_(versions[static_cast<std::size_t>(version)].at(item.key()));
        item.value().mutable_grad() = at::Tensor();
      }
    }
    const data::Batch batch = data::Loader::read(data, order, 0, 1, step - 1);
    auto where = std::make_shared<nn::Where>();
    where->step = step;
    where->sample_ids = batch.sample_ids;
    const nn::Loss loss = model->loss(nn::Flow(batch.inputs, where), batch.targets);
    loss.sum.backward();
    const auto weight = loss.weight.item<double>();
    outcome.losses.push_back(loss.sum.item<double>() / weight);
    auto next = versions.back();
    double squares = 0;
    for (auto& item : model->named_parameters()) {
      const at::Tensor gradient = item.value().grad() / weight;
      squares += gradient.square().sum().item<double>();
      const int delay = delay_of.at(item.key());
      const double by = config.pipeline.lr_by_delay ? std::max(1, delay) : 1;
      optimizer.step(item.key(), next.at(item.key()), gradient, config.optim.lr / by);
    }
    outcome.norms.push_back(std::sqrt(squares));
    versions.push_back(std::move(next));
  }
  outcome.weights = versions.back();
  return outcome;
}

}  // namespace trireme::test
