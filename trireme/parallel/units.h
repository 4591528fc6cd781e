#pragma once

#include <string>
#include <vector>

#include "trireme/nn/layer.h"
#include "trireme/nn/parameters.h"

namespace trireme::parallel {

/// Parameters that are gathered together and released together.
struct Unit {
  std::string name;
  std::vector<std::size_t> parameters;
};

/// A layer that needs units while it runs.
struct UnitUser {
  nn::LayerImpl* layer = nullptr;
  std::vector<std::size_t> units;
};

/// Which parameters are gathered together, and for which layers.
///
///   gpt
///   ├── wte        unit      every Layer directly inside the root is a unit;
///   ├── h                    Sequentials, and modules that are not layers,
///   │   ├── 0      unit      are searched for layers
///   │   └── 1      unit
///   ├── ln_f       unit
///   └── lm_head    uses 'wte', because its weight is tied
struct Units {
  std::vector<Unit> units;
  std::vector<UnitUser> users;
  std::vector<std::size_t> unit_of;  ///< of each parameter
};

/// Throws MisuseError for a parameter that belongs to no layer below the root: no layer's call
/// would tell when to gather it.
Units find_units(torch::nn::Module& root, const std::vector<nn::Parameter>& parameters);

}  // namespace trireme::parallel
