#pragma once

#include <string>
#include <vector>

#include "trireme/nn/linear.h"

namespace trireme::nn {

struct AdapterOptions {
  int64_t rank = 8;
  double alpha = 0;  ///< adapters are scaled by alpha / rank; 0: by 1
  /// Patterns of the names of layers, as a shell matches: `*` stands for any text.
  std::vector<std::string> targets = {"*"};
};

/// Gives every nn::Linear whose name matches a low-rank adapter (LinearImpl::add_adapter), and
/// freezes all other parameters, so that they take no gradient, no master and no optimizer state.
/// Returns the names of these layers.
///
///   nn::add_adapters(*model, {.rank = 8, .alpha = 16, .targets = {"*.attn.*"}});
///   parallel::DataParallel replicas(*model, mesh);          // trains lora_A and lora_B only
///
/// Call it after nn::cut, and before anything is attached. If the model has its values already, the
/// adapters get theirs here, else with nn::initialize. Throws MisuseError for a pattern that
/// matches no nn::Linear.
std::vector<std::string> add_adapters(torch::nn::Module& model, const AdapterOptions& options);

/// The layers that have one, by name.
std::vector<std::pair<std::string, std::shared_ptr<LinearImpl>>> adapted_layers(
    const torch::nn::Module& model);

/// Adds the adapters to the weights, W + scale B A in double precision, and makes B zero: the model
/// computes what it did before, up to rounding. Each rank merges its own part, if layers are cut;
/// weights that are sharded must be gathered.
void merge_adapters(torch::nn::Module& model);

}  // namespace trireme::nn
