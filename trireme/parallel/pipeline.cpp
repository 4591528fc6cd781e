#include "trireme/parallel/pipeline.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/nn/bind.h"
#include "trireme/parallel/compressed_reducer.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/parallel/replicas.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/text.h"

namespace trireme::parallel {

namespace {

using pipeline::Act;
using pipeline::Action;
using pipeline::Schedule;

/// The ranks that run the same stages as this one.
Mesh mesh_of_stage(const Mesh& mesh) {
  Degrees degrees = mesh.degrees();
  degrees.pipe = 1;
  return {mesh.group(same_stage().axes), degrees, mesh.device()};
}

/// Adds transfers, reductions and (if weights are held over a step) gathers to the schedule, and
/// verifies it.
Schedule completed(Schedule schedule, const Mesh& mesh, bool holds_weights) {
  if (schedule.ranks() != mesh.size(Axis::Pipe))
    throw ScheduleError(fmt::format("schedule '{}' is for {} ranks, the mesh has pipe {}",
                                    schedule.name, schedule.ranks(), mesh.size(Axis::Pipe)));
  for (const auto& program : schedule.programs)
    for (const Action& action : program)
      if (action.act == Act::Update)
        throw ScheduleError(fmt::format(
            "schedule '{}' updates weights in the middle ({}), and then drains the pipe: a step is "
            "one update; without draining run pipedream or pipedream-2bw",
            schedule.name, to_text(action)));
  pipeline::verify(schedule);
  schedule = pipeline::with_reduces(std::move(schedule));
  if (holds_weights) schedule = pipeline::with_unshards(std::move(schedule));
  schedule = pipeline::with_transfers(std::move(schedule));
  pipeline::verify(schedule);
  return schedule;
}

/// Checks that every parameter and buffer belongs to a link, and every layer to one link only.
void check_complete(const nn::ModelImpl& model, const nn::Chain& chain) {
  std::map<const void*, std::string> owner;
  std::set<const void*> claimed;
  for (const nn::Link* link : chain.all_between(0, chain.size()))
    for (const auto& layer : link->layers) {
      const auto [found, is_new] = owner.emplace(layer.get(), link->name);
      core::check(
          is_new,
          "Pipeline: layer '{}' belongs to link '{}' and to '{}'; it may belong to one only",
          layer->full_name(), found->second, link->name);
      for (const at::Tensor& one : layer->parameters()) claimed.insert(one.unsafeGetTensorImpl());
    }
  for (const nn::Link& link : chain.links) {
    std::set<const void*> inside;
    for (const nn::Link& one : link.inside)
      for (const auto& layer : one.layers)
        for (const at::Tensor& own : layer->parameters()) inside.insert(own.unsafeGetTensorImpl());
    for (const auto& layer : link.layers)
      for (const auto& own : layer->named_parameters())
        core::check(link.inside.empty() || inside.contains(own.value().unsafeGetTensorImpl()),
                    "Pipeline: '{}' of link '{}' is in none of the links inside of it", own.key(),
                    link.name);
  }
  for (const nn::Parameter& one : nn::parameters_of(model))
    core::check(
        claimed.contains(one.tensor.unsafeGetTensorImpl()),
        "Pipeline: parameter '{}' belongs to no link, so that no stage would have it; name the "
        "layer that has it in chain()",
        one.name);
  std::set<const void*> buffers;
  for (const nn::Link* link : chain.all_between(0, chain.size()))
    for (const auto& layer : link->layers)
      for (const at::Tensor& one : layer->buffers()) buffers.insert(one.unsafeGetTensorImpl());
  for (const auto& item : model.named_buffers())
    core::check(
        buffers.contains(item.value().unsafeGetTensorImpl()),
        "Pipeline: buffer '{}' belongs to no link, so that no stage would have it; register it in "
        "a layer that chain() names",
        item.key());
}

/// Is the link inside of a link whose layer is recomputed as a whole? That layer's hooks do not run
/// when only a part of it is on a stage.
bool is_recomputed_part(const nn::Chain& chain, const nn::Link* part) {
  for (const nn::Link& link : chain.links)
    for (const nn::Link& inside : link.inside)
      if (&inside == part)
        return std::any_of(link.layers.begin(), link.layers.end(),
                           [](const auto& layer) { return layer->has_hook(nn::Seam::Recompute); });
  return false;
}

Holders holders_of(const std::map<std::string, Holders>& tied, const std::string& name, int rank) {
  const auto found = tied.find(name);
  return found == tied.end() ? Holders{rank} : found->second;
}

}  // namespace

Pipeline::Pipeline(nn::ModelImpl& model, const Mesh& mesh, Schedule schedule,
                   PipelineOptions options)
    : mesh_(mesh),
      of_stage_(mesh_of_stage(mesh)),
      schedule_(completed(std::move(schedule), mesh,
                          sharding_on(mesh.degrees(), options.sharding) != Sharding::None &&
                              options.keep_gathered)),
      options_(std::move(options)),
      pipe_(mesh.group(Axis::Pipe).split("stages", 0, mesh.coord(Axis::Pipe))),
      transfers_(pipe_, mesh.device(), options_.transfers),
      reducer_(options_.reducer != nullptr ? options_.reducer
                                           : make_reducer(mesh, options_.compress)),
      numbered_micros_(schedule_.micros) {
  nn::name_layers(model);
  cut_ = options_.cut.empty()
             ? balance(model, mesh, {.by = Balance::By::Parameters}, schedule_.stages(), 0)
             : options_.cut;
  chain_ = model.chain();
  const auto places = static_cast<std::size_t>(std::accumulate(cut_.begin(), cut_.end(), 0));
  core::check(
      cut_.size() == static_cast<std::size_t>(schedule_.stages()) && places == chain_.size() &&
          std::all_of(cut_.begin(), cut_.end(), [](int size) { return size >= 1; }),
      "Pipeline: a cut into {} places, but the chain has {} and schedule '{}' has {} stages, of at "
      "least one place each",
      fmt::join(cut_, " + "), chain_.size(), schedule_.name, schedule_.stages());
  check_complete(model, chain_);
  check_same_pipeline();
  build_stages(model);
  build_parts(model);
  collect_parameters(model);
}

/// Throws if ranks have different cuts or schedules: they would compute wrong numbers, or wait for
/// ever.
void Pipeline::check_same_pipeline() const {
  std::string mine = fmt::format("stages {}\n{}", describe(chain_, cut_), to_csv(schedule_));
  const auto texts = comm::all_gather_texts(
      mesh_.world(), fmt::format("{:016x}{}", core::hash64(mine), describe(chain_, cut_)));
  for (std::size_t rank = 1; rank < texts.size(); ++rank)
    if (texts[rank] != texts[0])
      throw ConfigError(fmt::format(
          "rank {} has another pipeline than rank 0: stages {}, not {}, or another schedule '{}'; "
          "give all ranks the same cut and the same file",
          rank, texts[rank].substr(16), texts[0].substr(16), schedule_.name));
}

void Pipeline::build_stages(nn::ModelImpl& model) {
  std::set<const void*> mine;
  std::size_t begin = 0;
  for (int index = 0; index < schedule_.stages(); ++index) {
    const std::size_t end = begin + static_cast<std::size_t>(cut_[static_cast<std::size_t>(index)]);
    if (schedule_.rank_of(index) == pipe_.rank()) {
      Stage& stage = stages_.emplace_back();
      stage.index = index;
      const auto links = chain_.between(begin, end);
      if (model.recomputes_segments())
        stage.segments = nn::sqrt_segments(links, nn::LastSegment::Recomputed);
      else
        for (const nn::Link* link : links)
          stage.segments.push_back({std::make_shared<std::vector<nn::Link>>(1, *link),
                                    is_recomputed_part(chain_, link)});
      for (const nn::Link* link : chain_.all_between(begin, end))
        stage.layers.insert(stage.layers.end(), link->layers.begin(), link->layers.end());
      for (const auto& layer : stage.layers)
        for (const at::Tensor& one : layer->parameters()) mine.insert(one.unsafeGetTensorImpl());
    }
    begin = end;
  }
  for (const nn::Parameter& one : nn::parameters_of(model))
    if (!mine.contains(one.tensor.unsafeGetTensorImpl()))
      nn::unbind(one.tensor, fmt::format("parameter '{}' is of a stage that another rank of the "
                                         "pipeline runs: it has no memory here",
                                         one.name));
  const auto& program = schedule_.programs[static_cast<std::size_t>(pipe_.rank())];
  last_of_.assign(static_cast<std::size_t>(schedule_.stages()), 0);
  for (std::size_t i = 0; i < program.size(); ++i)
    if (completes_backward(program[i].act))
      last_of_[static_cast<std::size_t>(program[i].stage)] = i;
}

/// Groups the stages of this rank into parts: stages that share a parameter, also through a third
/// stage, are one part. Each part has its own DataParallel or FullySharded.
void Pipeline::build_parts(const nn::ModelImpl& model) {
  struct SharedStages {
    std::set<const void*> parameters;
    std::vector<Stage*> stages;
  };
  std::vector<SharedStages> groups;
  for (Stage& stage : stages_) {
    SharedStages merged{{}, {&stage}};
    for (const auto& layer : stage.layers)
      for (const at::Tensor& one : layer->parameters())
        merged.parameters.insert(one.unsafeGetTensorImpl());
    for (std::size_t i = groups.size(); i-- > 0;) {
      if (std::none_of(merged.parameters.begin(), merged.parameters.end(),
                       [&](const void* one) { return groups[i].parameters.contains(one); }))
        continue;
      merged.parameters.merge(groups[i].parameters);
      merged.stages.insert(merged.stages.begin(), groups[i].stages.begin(), groups[i].stages.end());
      groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(i));
    }
    groups.push_back(std::move(merged));
  }
  std::vector<std::vector<std::shared_ptr<nn::LayerImpl>>> layers;
  for (const SharedStages& group : groups) {
    StagePart& part = *parts_.emplace_back(std::make_unique<StagePart>());
    layers.emplace_back();
    for (Stage* stage : group.stages) {
      stage->part = &part;
      part.stages.push_back(stage->index);
      layers.back().insert(layers.back().end(), stage->layers.begin(), stage->layers.end());
    }
  }
  using Gathered = FullyShardedOptions::Gathered;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    StagePart& part = *parts_[i];
    part.module = nn::part_of_model(model, layers[i]);
    nn::defer_weights(*part.module, part.queue);
    if (policy().sharding == Sharding::None) {
      nn::materialize(*part.module);
      part.attached = std::make_unique<DataParallel>(
          *part.module, of_stage_,
          DataParallelOptions{
              .buckets = options_.buckets, .precision = options_.precision, .reducer = reducer_});
      continue;
    }
    // Backward reaches the units of several stages in an order that changes with the micro-batch.
    const bool for_a_step = options_.keep_gathered || part.stages.size() > 1;
    part.attached = std::make_unique<FullySharded>(
        *part.module, of_stage_,
        FullyShardedOptions{.sharding = options_.sharding,
                            .gathers = options_.gathers,
                            .precision = options_.precision,
                            .gathered = for_a_step ? Gathered::ForAStep : Gathered::ForALayer,
                            .reducer = reducer_});
  }
}

Policy Pipeline::policy() const {
  return {.sharding = sharding_on(mesh_.degrees(), options_.sharding),
          .precision = options_.precision};
}

void Pipeline::collect_parameters(const nn::ModelImpl& model) {
  std::vector<ParameterShard> all;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const Attached& attached = *parts_[p]->attached;
    const std::size_t first = parameters_.size();
    for (std::size_t i = 0; i < attached.parameters().size(); ++i) {
      parameters_.push_back(attached.parameters()[i]);
      origins_.emplace_back(p, i);
    }
    for (ParameterShard one : attached.shards()) {
      one.parameter += first;
      shards_.push_back(std::move(one));
    }
    for (ParameterShard& one : attached.frozen()) all.push_back(std::move(one));
  }
  all.insert(all.begin(), shards_.begin(), shards_.end());
  tied_ = find_tied(all, pipe_);
  for (ParameterShard& one : shards_)
    set_holders(one, parameters_[one.parameter], holders_of(tied_, one.name, pipe_.rank()), mesh_,
                policy());
  broadcast_tied(all, tied_, pipe_, *reducer_);
  std::vector<Gradients*> gradients;
  for (const auto& part : parts_) gradients.push_back(&part->attached->gradients());
  std::vector<std::string> names;  // of the whole model
  for (const nn::Parameter& one : nn::parameters_of(model))
    if (one.tensor.requires_grad()) names.push_back(one.name);
  step_end_ =
      std::make_unique<StepEnd>(mesh_, reducer_, std::move(gradients), shards_, std::move(names));
  updated();  // tied weights may have got another rank's values
}

Totals Pipeline::finish(const Finish& what) {
  core::check(asynchronous_ == nullptr,
              "Pipeline: '{}' updates within run; use asynchronous()->drain() instead of finish()",
              schedule_.name);
  core::check(
      state_ == StepState::Ran || state_ == StepState::Idle,
      "Pipeline: a step threw, so that its gradients are incomplete; build it anew and load "
      "the last checkpoint");
  for (const auto& part : parts_) part->attached->start_finish();
  for (const auto& part : parts_) part->attached->check_step();
  // Only the last stage knows losses, and of the ranks that compute one, one reports.
  const LossTotals losses = std::exchange(losses_, {});
  const Totals totals =
      step_end_->finish(reports_loss(mesh_.coord()) ? losses : LossTotals{}, what);
  for (const auto& part : parts_) part->attached->end_finish();
  state_ = StepState::Idle;
  return totals;
}

std::string Pipeline::description() const {
  std::string text =
      fmt::format("{} micro-batch{} by {}; stages: {}\n", schedule_.micros,
                  schedule_.micros == 1 ? "" : "es", schedule_.name, describe(chain_, cut_));
  if (asynchronous_ != nullptr) return text + describe_delays();
  if (schedule_.micros < schedule_.ranks())
    text +=
        "fewer micro-batches than ranks in the pipe: they wait for each other; lower "
        "batch.micro\n";
  return text;
}

void Pipeline::close_steps() {
  for (const auto& part : parts_) part->attached->close_steps();
}

void Pipeline::check_same() const {
  std::vector<ParameterShard> all;
  for (const auto& part : parts_)
    for (ParameterShard& one : part->attached->shared()) all.push_back(std::move(one));
  check_same_values(all, buffers(), mesh_.world());
}

std::vector<ParameterShard> Pipeline::frozen() const {
  std::vector<ParameterShard> all;
  for (const auto& part : parts_) {
    const auto parameters = nn::parameters_of(*part->module);
    for (ParameterShard& one : part->attached->frozen()) {
      const auto own = std::ranges::find(parameters, one.name, &nn::Parameter::name);
      set_holders(one, *own, holders_of(tied_, one.name, pipe_.rank()), mesh_, policy());
      all.push_back(std::move(one));
    }
  }
  return all;
}

std::vector<Attached::ParameterValue> Pipeline::frozen_values() {
  std::vector<ParameterValue> all;
  for (const auto& part : parts_)
    for (ParameterValue& one : part->attached->frozen_values()) all.push_back(std::move(one));
  return all;
}

std::vector<std::string> Pipeline::order() const {
  std::vector<std::string> names;
  for (const auto& part : parts_)
    for (std::string& name : part->attached->order()) names.push_back(std::move(name));
  return names;
}

Fires Pipeline::fires() const {
  Fires all;
  for (const auto& part : parts_) all.merge(part->attached->fires());
  return all;
}

void Pipeline::set_order(const std::vector<std::string>& names, const Fires& fires) {
  for (const auto& part : parts_) part->attached->set_order(names, fires);
}

int64_t Pipeline::gradient_bytes() const {
  int64_t bytes = 0;
  for (const auto& part : parts_) bytes += part->attached->gradient_bytes();
  return bytes;
}

std::vector<torch::nn::Module*> Pipeline::modules() const {
  std::vector<torch::nn::Module*> all;
  for (const auto& part : parts_) all.push_back(part->module.get());
  return all;
}

}  // namespace trireme::parallel
