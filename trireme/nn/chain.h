#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/nn/layer.h"
#include "trireme/nn/loss.h"

namespace trireme::nn {

/// One link of a model's chain.
struct Link {
  std::string name;  ///< for messages: "embed", "h.3"
  /// All layers that `run` calls. A layer belongs to one link only.
  std::vector<std::shared_ptr<LayerImpl>> layers;
  FlowFunction run = {};  ///< if empty, the layers are called one after the other
  /// Does it count as a layer of the model? (An embedding does not; it goes with the first block.)
  bool counts = true;
  /// Finer links that together do the same, so that a pipeline may also cut between them.
  std::vector<Link> inside = {};

  Flow forward(Flow in) const;
};

/// A model as a chain of links: each gets the output of the one before, and the head computes the
/// loss. A pipeline cuts the chain between links, or between the finer links inside of them. Places
/// number the finest links:
///
///   embed ──> h.0 ──> h.1 ──> ... ──> head: loss(flow, targets)
///    0       1 2 3   4 5 6             n - 1
struct Chain {
  std::vector<Link> links;
  Link head = {};  ///< its `run` is unused; `loss` takes its place
  std::function<Loss(const Flow& in, const at::Tensor& targets)> loss = {};

  /// The number of places, including the head.
  std::size_t size() const;
  /// The number of places of each link, and of the head.
  std::vector<int> places() const;

  /// The links that cover the places [begin, end), without the head. A link that lies in the range
  /// as a whole is returned instead of its finer links.
  std::vector<const Link*> between(std::size_t begin, std::size_t end) const;
  /// The same with the head, if the range includes it.
  std::vector<const Link*> all_between(std::size_t begin, std::size_t end) const;
};

/// Makes a module of some layers of a model, in which everything keeps its name in the whole model.
/// So do tied parameters, even if the layer that declares them is not among these. The layers of
/// the whole model must have their names.
std::shared_ptr<torch::nn::Module> part_of_model(
    const torch::nn::Module& whole, const std::vector<std::shared_ptr<LayerImpl>>& layers);

/// Gives memory to the parameters that have none, and initializes them.
void materialize(torch::nn::Module& module);

}  // namespace trireme::nn
