#include "trireme/train/step_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "trireme/core/error.h"
#include "trireme/nn/dropout.h"
#include "trireme/train/stages.h"

namespace trireme::train {

namespace {

/// Steps that run as usual first. Under DataParallel the first one observes the order of gradients,
/// and the second is the first that reduces them in it.
constexpr int kUsualSteps = 3;

bool drops_out(const nn::ModelImpl& model) {
  const auto all = model.modules(/*include_self=*/true);
  return std::any_of(all.begin(), all.end(), [](const auto& one) {
    const auto* dropout = dynamic_cast<const nn::DropoutImpl*>(one.get());
    return dropout != nullptr && dropout->probability() > 0;
  });
}

/// The reason why a step of this run cannot be recorded; empty if there is none. Whatever the host
/// decides or computes anew in every step would be frozen in a recording.
std::string obstacle_for(const config::Config& config, const Mesh& mesh, const nn::ModelImpl& model,
                         const AttachOptions& options) {
  if (config.run.graph == config::Graph::Off) return "run.graph is \"off\"";
  if (!mesh.device().is_cuda()) return "there is no GPU";
  if (!cuda::Graph::available()) return "this libtorch is not for CUDA";
  if (mesh.world().size() > 1 && mesh.world().backend() != "nccl")
    return fmt::format("comm.backend is \"{}\", whose bytes pass through the host",
                       mesh.world().backend());
  if (is_asynchronous(config, mesh.degrees()))
    return "the steps of an asynchronous pipeline are not alike";
  if (config.model.has_experts())
    return "how many tokens each expert gets is decided anew in every step, and the host must know";
  if (drops_out(model) || config.model.dropout > 0 || config.model.attention_dropout > 0)
    return "dropout draws its masks by the number of the step, which the host knows";
  if (config.data.documents) return "data.documents makes masks that the host reads";
  if (mesh.size(Axis::Context) > 1)
    return "ranks that share sequences exchange keys as the host goes on";
  if (config.compress.kind != config::Compression::None)
    return "compress.kind encodes gradients on the host";
  if (options.reducer != nullptr) return "a reducer of the program's own may decide on the host";
  if (config.memory.offload != config::Offload::None) return "memory.offload updates on the host";
  if (config.precision.master == config::Master::None)
    return "precision.master is \"none\", whose random bits come from the host";
  if (config.log.trace) return "log.trace marks the beginning and end of each layer from the host";
  if (config.precision.compute == config::Dtype::Float64)
    return "in float64 the host reads the learning rate";
  return {};
}

}  // namespace

StepGraph::StepGraph(const config::Config& config, const Mesh& mesh, const nn::ModelImpl& model,
                     const AttachOptions& options)
    : world_(mesh.world()),
      device_(mesh.device()),
      obstacle_(obstacle_for(config, mesh, model, options)) {}

bool StepGraph::takes(const data::Batch& batch) {
  recorded_now_ = false;
  // All ranks must decide alike, so nothing that only this rank knows may count. The rows of all
  // ranks together decide how many each of them has. (The ranks that share a batch may be more than
  // those that make the step: replicas that train on their own, and meet by steps, share it.)
  if (!obstacle_.empty() || batch.smallest_block == 0) return false;
  if (inputs_) return inputs_->all_rows == batch.all_rows;
  // What is recorded must have run before with as many rows: that chooses its algorithms.
  if (std::exchange(rows_, batch.all_rows) != batch.all_rows) usual_ = 0;
  return usual_++ >= kUsualSteps;
}

at::Tensor StepGraph::run(const data::Batch& batch,
                          const std::function<at::Tensor(const data::Batch&)>& issue) {
  if (graph_ == nullptr) {
    inputs_ = batch;
    inputs_->inputs = batch.inputs.clone();
    inputs_->targets = batch.targets.clone();
    auto graph = std::make_unique<cuda::Graph>();
    try {
      graph->capture(device_, [&] { numbers_ = issue(*inputs_); });
    } catch (const CommError&) {  // the world has failed
      throw;
    } catch (const std::exception& error) {
      throw Error(fmt::format("the step cannot be recorded as a CUDA graph; set run.graph=off ({})",
                              error.what()));
    }
    graph_ = std::move(graph);
    recorded_now_ = true;
  } else {
    core::check(batch.inputs.sizes() == inputs_->inputs.sizes() &&
                    batch.targets.sizes() == inputs_->targets.sizes(),
                "a batch of {} rows has another shape than the one whose step was recorded as a "
                "CUDA graph; set run.graph=off",
                batch.all_rows);
    inputs_->inputs.copy_(batch.inputs);
    inputs_->targets.copy_(batch.targets);
  }
  replayed_ = world_.replay("step", [this] { graph_->replay(); });
  replayed_.wait();
  return numbers_;
}

}  // namespace trireme::train
