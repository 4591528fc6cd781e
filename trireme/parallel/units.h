#pragma once

#include <string>
#include <vector>

#include "trireme/nn/layer.h"
#include "trireme/nn/parameters.h"

namespace trireme::parallel {

/// Parameters that are gathered together, and let go together.
struct Unit {
  std::string name;
  std::vector<std::size_t> parameters;
};

/// A layer that needs units around its call.
struct UnitUser {
  nn::LayerImpl* layer = nullptr;
  std::vector<std::size_t> units;
};

/// Which parameters are gathered together, and for whom.
///
///   gpt
///   ├── wte        unit            every Layer directly inside the root is one;
///   ├── h                          modules that are no layers, and Sequentials, are looked into
///   │   ├── 0      unit
///   │   └── 1      unit
///   ├── ln_f       unit
///   └── lm_head    uses 'wte'      where its weight is tied
struct Units {
  std::vector<Unit> units;
  std::vector<UnitUser> users;
  std::vector<std::size_t> unit_of;  ///< of each parameter
};

/// Throws MisuseError for a parameter that no layer's call can be told apart by: it would have no
/// memory when it is used.
Units find_units(torch::nn::Module& root, const std::vector<nn::Parameter>& parameters);

}  // namespace trireme::parallel
