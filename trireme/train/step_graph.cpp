#include "trireme/train/step_graph.h"

#include <fmt/format.h>

#include "trireme/core/log.h"

namespace trireme::train {

namespace {

/// Steps that run as usual first. Under DataParallel the first one observes the order of gradients,
/// and the second is the first that reduces them in it.
constexpr int kUsualSteps = 3;

/// The reason why a step of this run cannot be recorded; empty if there is none. Whatever the host
/// decides or computes anew in every step would be frozen in a recording.
std::string obstacle_for(const config::Config& config, const Mesh& mesh) {
  const Degrees& degrees = mesh.degrees();
  if (config.run.graph == config::Graph::Off) return "run.graph is \"off\"";
  if (!mesh.device().is_cuda()) return "there is no GPU";
  if (!cuda::Graph::available()) return "this libtorch is not for CUDA";
  if (mesh.world().size() > 1 && mesh.world().backend() != "nccl")
    return fmt::format("comm.backend is \"{}\", whose bytes pass through the host",
                       mesh.world().backend());
  if (config.model.dropout > 0 || config.model.attention_dropout > 0)
    return "dropout draws its masks by the number of the step, which the host knows";
  if (degrees.pipe > 1) return "a pipeline matches its transfers on the host";
  if (degrees.shard > 1) return "sharded weights are gathered and released by the host";
  if (config.memory.offload != config::Offload::None) return "memory.offload updates on the host";
  if (config.precision.master == config::Master::None)
    return "precision.master is \"none\", whose random bits come from the host";
  if (config.log.trace) return "log.trace marks the beginning and end of each layer from the host";
  if (config.precision.compute == config::Dtype::Float64)
    return "in float64 the host reads the learning rate";
  return {};
}

}  // namespace

StepGraph::StepGraph(const config::Config& config, const Mesh& mesh)
    : world_(mesh.world()),
      ranks_(mesh.samples().size()),
      device_(mesh.device()),
      obstacle_(obstacle_for(config, mesh)) {}

bool StepGraph::takes(const data::Batch& batch) {
  recorded_now_ = false;
  // All ranks must decide alike, so nothing that only this rank knows may count. The rows of all
  // ranks together decide how many each of them has.
  if (!obstacle_.empty() || batch.all_rows < ranks_) return false;
  if (usual_ >= kUsualSteps) return !inputs_ || inputs_->all_rows == batch.all_rows;
  ++usual_;
  return false;
}

at::Tensor StepGraph::run(const data::Batch& batch,
                          const std::function<at::Tensor(const data::Batch&)>& issue) {
  if (graph_ == nullptr) {
    inputs_ = batch;
    inputs_->inputs = batch.inputs.clone();
    inputs_->targets = batch.targets.clone();
    auto graph = std::make_unique<cuda::Graph>();
    graph->capture(device_, [&] { numbers_ = issue(*inputs_); });
    graph_ = std::move(graph);
    recorded_now_ = true;
  } else {
    inputs_->inputs.copy_(batch.inputs);
    inputs_->targets.copy_(batch.targets);
  }
  replayed_ = world_.replay("step", [this] { graph_->replay(); });
  replayed_.wait();
  return numbers_;
}

void StepGraph::forget() {
  graph_.reset();
  inputs_.reset();
  numbers_ = at::Tensor();
}

}  // namespace trireme::train
