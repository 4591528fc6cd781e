#pragma once

#include <torch/csrc/autograd/edge.h>

#include <map>
#include <memory>
#include <vector>

#include "trireme/nn/segments.h"
#include "trireme/nn/weight_queue.h"
#include "trireme/parallel/attached_module.h"

namespace trireme::parallel {

/// The layers of one rank that are reduced and gathered together: those of one stage, or of several
/// stages that share a parameter.
struct StagePart {
  std::shared_ptr<torch::nn::Module> module;
  std::unique_ptr<AttachedModule> attached;
  nn::WeightQueuePtr queue = std::make_shared<nn::WeightQueue>();
  std::vector<int> stages;
  int holds = 0;      ///< stages that hold its weights now
  int completed = 0;  ///< stages whose gradients are complete in this step
};

/// What a stage keeps of a micro-batch between its forward and its backward. The output is not kept
/// here: the operation that needs it keeps it.
struct MicroInFlight {
  std::vector<at::Tensor> inputs;            ///< leaves; their .grad is sent back
  std::vector<torch::autograd::Edge> roots;  ///< of each output; invalid: it needs no gradient
  std::vector<at::Tensor> seeds = {};        ///< their gradients, where no stage follows
  std::vector<nn::WeightJob> jobs = {};      ///< weight gradients that a split backward has put off
  at::Tensor loss = {};  ///< its sum and weight, in a pipeline where they travel with gradients
};

/// One stage of a pipeline on the rank that runs it, with its micro-batches in flight.
struct Stage {
  int index = 0;
  /// In order, without the head. A segment is recomputed by `memory.recompute = "sqrt"`, or if it
  /// is inside of a link whose layer is recomputed.
  std::vector<nn::Segment> segments = {};
  std::vector<std::shared_ptr<nn::LayerImpl>> layers = {};  ///< of these links and of the head
  StagePart* part = nullptr;
  int forwards = 0;                                   ///< of this step
  std::map<int, nn::Flow> inputs = {}, outputs = {};  ///< by micro-batch
  std::map<int, std::vector<at::Tensor>> gradients_in = {}, gradients_out = {};
  std::map<int, MicroInFlight> in_flight = {};
};

/// Removes what a stage has of a micro-batch from one of its maps, and returns it.
template <class Map>
auto take(Map& from, int micro) {
  auto node = from.extract(micro);
  TORCH_INTERNAL_ASSERT(!node.empty(), "a verified schedule uses what is not there");
  return std::move(node.mapped());
}

}  // namespace trireme::parallel
