#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/nn/layer.h"
#include "trireme/nn/loss.h"

namespace trireme::nn {

/// One link of the chain that a model is.
struct Link {
  std::string name;  ///< for people: "embed", "h.3"
  /// All layers that `run` calls: each belongs to one link only.
  std::vector<std::shared_ptr<LayerImpl>> layers;
  LayerImpl::Call run = {};  ///< empty: calls its layers one after the other
  /// Is it one of the layers that people count? (An embedding goes with the first that is.)
  bool counts = true;
  /// Finer links that do the same one after the other, where a cut may also fall between.
  std::vector<Link> inside = {};

  Flow forward(Flow in) const;
};

/// A model as links, each given what the one before it gives; the last gives the loss. A pipeline
/// cuts between links, or between the finer ones inside of them: places are counted by the finest.
///
///   embed ──> h.0 ──> h.1 ──> ... ──> head: loss(flow, targets)
///    0       1 2 3   4 5 6             n - 1
struct Chain {
  std::vector<Link> links;
  Link head = {};  ///< whose `run` is `loss`
  std::function<Loss(const Flow& in, const at::Tensor& targets)> loss = {};

  /// The number of places, the head's included; and of each link, how many are its.
  std::size_t size() const;
  std::vector<int> places() const;

  /// What to run between two places, the head left out: links as wholes where they are.
  std::vector<const Link*> between(std::size_t begin, std::size_t end) const;
  /// The same with the head.
  std::vector<const Link*> all_between(std::size_t begin, std::size_t end) const;
};

/// Some layers of a model as a module of their own, in which everything has the name that it has in
/// the whole: tied parameters too, whose first holder may be elsewhere. The whole has been named.
std::shared_ptr<torch::nn::Module> part_of_model(
    const torch::nn::Module& whole, const std::vector<std::shared_ptr<LayerImpl>>& layers);

/// Gives the parameters that have no memory some, and their first values by their rules.
void materialize(torch::nn::Module& module);

}  // namespace trireme::nn
