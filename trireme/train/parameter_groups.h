#pragma once

#include <string>
#include <vector>

#include "trireme/config/config.h"
#include "trireme/nn/parameters.h"

namespace trireme::train {

/// How one parameter is trained.
struct Recipe {
  double rate = 1;          ///< times the learning rate of the step
  double weight_decay = 0;  ///< 0 for a parameter of fewer than two dims, whatever its group says
};

/// `optim.groups`: the first group whose pattern matches the name says it; what it leaves open, and
/// parameters of no group, follow `optim`.
Recipe recipe_of(const config::Optim& keys, const nn::Parameter& parameter);

/// Throws ConfigError for a group that matches no parameter, or only such as an earlier group has.
void check_groups(const config::Optim& keys, const std::vector<nn::Parameter>& all);

}  // namespace trireme::train
