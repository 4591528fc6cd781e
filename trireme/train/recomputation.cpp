#include "trireme/train/recomputation.h"

#include <algorithm>
#include <cmath>

#include "trireme/core/error.h"
#include "trireme/nn/segments.h"
#include "trireme/pipeline/passes.h"
#include "trireme/train/attach.h"
#include "trireme/train/stages.h"

namespace trireme::train {

using config::Recompute;

bool backward_follows(const pipeline::Program& program) {
  for (std::size_t i = 0; i < program.size(); ++i)
    if (program[i].act == pipeline::Act::Forward && pipeline::backward_follows(program, i))
      return true;
  return false;
}

void check_except_last(const config::Config& config, const Degrees& degrees) {
  if (config.memory.recompute != Recompute::ExceptLast || degrees.pipe == 1) return;
  const pipeline::Schedule schedule = schedule_of(config, degrees);
  if (std::ranges::any_of(schedule.programs, backward_follows)) return;
  throw ConfigError(fmt::format(
      "memory.recompute = \"except_last\" with pipeline.schedule = \"{}\" on pipe {}: no "
      "micro-batch goes backward right after its forward, so that all are recomputed; "
      "use \"block\", or another schedule, such as 1f1b",
      config.pipeline.schedule, degrees.pipe));
}

nn::RecomputeSwitchPtr recompute(const config::Config& config, const Mesh& mesh,
                                 nn::ModelImpl& model) {
  nn::RecomputeSwitchPtr when;
  switch (config.memory.recompute) {
    case Recompute::None: break;
    case Recompute::ExceptLast:
      // Without a pipeline every backward follows at once: nothing is recomputed.
      if (mesh.degrees().pipe == 1) break;
      check_except_last(config, mesh.degrees());
      when = std::make_shared<nn::RecomputeSwitch>();
      [[fallthrough]];
    case Recompute::Block:
      for (const auto& block : model.blocks()) nn::recompute(*block, when);
      break;
    case Recompute::Selective:
      for (const auto& attention : model.attentions()) nn::recompute(*attention);
      break;
    case Recompute::Cheap: {
      const bool released = policy_of(config, mesh.degrees()).sharding == Sharding::Parameters;
      nn::recompute_cheaply(model, released ? nn::WeightsLater::MayGo : nn::WeightsLater::Stay);
      break;
    }
    case Recompute::Sqrt:
      if (model.chain().links.empty())
        throw ConfigError(
            fmt::format("memory.recompute = \"sqrt\" cuts a model between the links of its chain, "
                        "but '{}' lists none; write chain(), or use \"block\"",
                        model.name()));
      model.recompute_segments();
  }
  return when;
}

namespace {

using Words = nn::Batching::Recompute;

int64_t bytes_of(const nn::ModelImpl& whole, nn::Batching of, Words words, double layers) {
  of.recompute = words;
  of.layers = layers;
  return whole.activation_bytes(of);
}

/// The input that one recomputed layer keeps.
int64_t input_bytes(const nn::ModelImpl& whole, const nn::Batching& of) {
  return bytes_of(whole, of, Words::Block, 2) - bytes_of(whole, of, Words::Block, 1);
}

int64_t times(double count, int64_t bytes) {
  return static_cast<int64_t>(count * static_cast<double>(bytes));
}

double layers_of(nn::ModelImpl& whole) {
  const nn::Chain chain = whole.chain();
  return static_cast<double>(std::ranges::count_if(chain.links, &nn::Link::counts));
}

/// All of one segment, which is in memory at a time, and the inputs of the others.
int64_t bytes_of_segments(nn::ModelImpl& whole, const nn::Batching& of, const InFlight& stages) {
  const bool alone = of.layers < 0;
  const double layers = alone ? layers_of(whole) : stages.stage_layers;
  if (layers == 0) return bytes_of(whole, of, Words::None, of.layers);
  const auto length =
      static_cast<double>(nn::segment_length(static_cast<int64_t>(std::ceil(layers))));
  const double segments = std::ceil(layers / length) * (alone ? 1 : stages.in_flight);
  const int64_t one = bytes_of(whole, of, Words::None, std::min(length, layers));
  const int64_t inputs = times(segments - 1, input_bytes(whole, of));
  // What exists beside the layers of a model that is not cut into stages.
  const int64_t rest =
      alone ? bytes_of(whole, of, Words::None, -1) - bytes_of(whole, of, Words::None, layers) : 0;
  return one + inputs + rest;
}

/// All of the micro-batch whose backward comes next, and the inputs of the layers for the others.
int64_t bytes_except_last(const nn::ModelImpl& whole, const nn::Batching& of,
                          const InFlight& stages) {
  const int64_t recomputed = bytes_of(whole, of, Words::Block, of.layers);
  if (!stages.backward_follows) return recomputed;
  const int64_t last = bytes_of(whole, of, Words::None, stages.stage_layers);
  const double others = of.layers - stages.stage_layers;
  return std::max(recomputed, last + times(others, input_bytes(whole, of)));
}

}  // namespace

int64_t activation_bytes(const config::Config& config, nn::ModelImpl& whole, nn::Batching of,
                         const InFlight& stages) {
  switch (config.memory.recompute) {
    case Recompute::None: break;
    case Recompute::Block: of.recompute = Words::Block; break;
    case Recompute::Selective: of.recompute = Words::Selective; break;
    case Recompute::Cheap: of.recompute = Words::Cheap; break;
    case Recompute::Sqrt: return bytes_of_segments(whole, of, stages);
    case Recompute::ExceptLast:
      if (of.layers >= 0) return bytes_except_last(whole, of, stages);
  }
  return whole.activation_bytes(of);
}

}  // namespace trireme::train
