// Plain SGD on a tiny GPT, for replicas that train on their own.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "support/tiny_training.h"

namespace trireme::test {

/// Plain SGD in float64: the update is linear in the gradient, as the identities need.
inline config::Config plain_sgd(const std::function<void(config::Sync&)>& sync) {
  config::Config config = tiny_gpt_config();
  config.batch.global = 7;  // unequal replicas: means must be weighted by tokens
  config.batch.micro = 2;
  config.precision.compute = config::Dtype::Float64;
  config.optim.kind = config::OptimizerKind::Sgd;
  config.optim.lr = 0.1;
  config.optim.momentum = 0;
  config.optim.clip = 0;
  config.optim.weight_decay = 0.1;
  config.optim.schedule = config::RateSchedule::Constant;
  sync(config.sync);
  return config;
}

/// Weights by name.
using Weights = std::map<std::string, at::Tensor>;

}  // namespace trireme::test
