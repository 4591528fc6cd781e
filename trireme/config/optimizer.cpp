#include "trireme/config/optimizer.h"

namespace trireme::config {

ServerOptimizer updating_optimizer(const Config& config) {
  if (config.sync.optimizer != ServerOptimizer::Same) return config.sync.optimizer;
  return config.optim.kind == OptimizerKind::AdamW ? ServerOptimizer::AdamW : ServerOptimizer::Sgd;
}

}  // namespace trireme::config
