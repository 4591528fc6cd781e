#pragma once

#include <string>
#include <vector>

#include "trireme/nn/layer.h"
#include "trireme/nn/parameters.h"

namespace trireme::parallel {

/// Parameters that are gathered together and released together, from the same ranks.
struct Unit {
  std::string name;
  std::vector<std::size_t> parameters;
  bool experts = false;  ///< from the ranks that hold the same experts
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
///   │   └── 1      unit      (experts that are dealt to ranks are a unit of their own)
///   ├── ln_f       unit
///   └── lm_head    uses 'wte', because its weight is tied
struct Units {
  std::vector<Unit> units;
  std::vector<UnitUser> users;
  std::vector<std::size_t> unit_of;  ///< of each parameter
};

/// Throws MisuseError for a parameter that belongs to no layer below the root: no layer's call
/// would tell when to gather it.
Units find_units(torch::nn::Module& root, const std::vector<nn::Parameter>& parameters,
                 const Degrees& degrees = {});

}  // namespace trireme::parallel
