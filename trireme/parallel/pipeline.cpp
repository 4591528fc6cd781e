#include "trireme/parallel/pipeline.h"

#include <torch/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "trireme/core/error.h"
#include "trireme/nn/bind.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/pipeline/passes.h"

namespace trireme::parallel {

namespace {

namespace ag = torch::autograd;
using pipeline::Act;
using pipeline::Action;
using pipeline::Schedule;

constexpr std::size_t kAhead = 4;        // receives that are posted before they are needed
constexpr int kEvaluationTag = 1 << 30;  // behind those of any schedule

/// The ranks that run the same stages as this one.
Mesh mesh_of_stage(const Mesh& mesh) {
  Degrees degrees = mesh.degrees();
  degrees.pipe = 1;
  return {mesh.group({Axis::Replica, Axis::Shard, Axis::Context, Axis::Tensor}), degrees,
          mesh.device()};
}

/// With transfers, reductions and (where weights are held over a step) gathers; checked.
Schedule completed(Schedule schedule, const Mesh& mesh, bool holds_weights) {
  if (schedule.ranks() != mesh.size(Axis::Pipe))
    throw ScheduleError(fmt::format("schedule '{}' is for {} ranks, the mesh has pipe {}",
                                    schedule.name, schedule.ranks(), mesh.size(Axis::Pipe)));
  for (const auto& program : schedule.programs)
    for (const Action& action : program)
      if (action.act == Act::Update)
        throw ScheduleError(fmt::format(
            "schedule '{}' updates weights in the middle ({}): that is not built yet; this version "
            "runs schedules that update once a step",
            schedule.name, to_text(action)));
  pipeline::verify(schedule);
  schedule = pipeline::with_reduces(std::move(schedule));
  if (holds_weights) schedule = pipeline::with_unshards(std::move(schedule));
  schedule = pipeline::with_transfers(std::move(schedule));
  pipeline::verify(schedule);
  return schedule;
}

/// What stages hand to each other: no graph goes from one into the other.
std::vector<at::Tensor> leaves_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& one : tensors)
    leaves.push_back(one.defined() ? one.detach().requires_grad_(one.requires_grad()) : one);
  return leaves;
}

template <class Map>
auto take(Map& from, int micro) {
  auto node = from.extract(micro);
  TORCH_INTERNAL_ASSERT(!node.empty(), "a verified schedule uses what is not there");
  return std::move(node.mapped());
}

}  // namespace

Pipeline::Pipeline(nn::ModelImpl& model, const Mesh& mesh, Schedule schedule,
                   PipelineOptions options)
    : mesh_(mesh),
      of_stage_(mesh_of_stage(mesh)),
      schedule_(completed(std::move(schedule), mesh,
                          mesh.size(Axis::Shard) > 1 && options.keep_gathered)),
      options_(std::move(options)),
      pipe_(mesh.group(Axis::Pipe).split("stages", 0, mesh.coord(Axis::Pipe))),
      transfers_(pipe_, mesh.device()) {
  nn::name_layers(model);
  cut_ =
      options_.cut.empty() ? balance(model, mesh, "params", schedule_.stages(), 0) : options_.cut;
  chain_ = model.chain();
  const auto places = static_cast<std::size_t>(std::accumulate(cut_.begin(), cut_.end(), 0));
  core::check(
      cut_.size() == static_cast<std::size_t>(schedule_.stages()) && places == chain_.size(),
      "Pipeline: {} places in {} stages, but the chain has {} and schedule '{}' has {} stages",
      places, cut_.size(), chain_.size(), schedule_.name, schedule_.stages());
  build_stages(model);
  build_parts(model);
  collect_parameters();
}

Pipeline::~Pipeline() = default;

void Pipeline::build_stages(nn::ModelImpl& model) {
  std::set<const void*> mine;
  std::size_t begin = 0;
  for (int index = 0; index < schedule_.stages(); ++index) {
    const std::size_t end = begin + static_cast<std::size_t>(cut_[static_cast<std::size_t>(index)]);
    if (schedule_.rank_of(index) == pipe_.rank()) {
      Stage& stage = stages_.emplace_back();
      stage.index = index;
      stage.links = chain_.between(begin, end);
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
    if (lets_go(program[i].act)) last_of_[static_cast<std::size_t>(program[i].stage)] = i;
}

/// Stages that share a parameter are one part; each part is attached to for itself.
void Pipeline::build_parts(const nn::ModelImpl& model) {
  std::vector<std::set<const void*>> held;
  std::vector<std::vector<std::shared_ptr<nn::LayerImpl>>> layers;
  for (Stage& stage : stages_) {
    std::set<const void*> own;
    for (const auto& layer : stage.layers)
      for (const at::Tensor& one : layer->parameters()) own.insert(one.unsafeGetTensorImpl());
    std::size_t at = 0;
    while (at < parts_.size() && std::none_of(own.begin(), own.end(), [&](const void* one) {
             return held[at].contains(one);
           }))
      ++at;
    if (at == parts_.size()) {
      parts_.push_back(std::make_unique<StagePart>());
      held.emplace_back();
      layers.emplace_back();
    }
    stage.part = parts_[at].get();
    stage.part->stages.push_back(stage.index);
    held[at].merge(own);
    layers[at].insert(layers[at].end(), stage.layers.begin(), stage.layers.end());
  }
  using Gathered = FullyShardedOptions::Gathered;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    StagePart& part = *parts_[i];
    part.module = nn::part_of_model(model, layers[i]);
    nn::defer_weights(*part.module, part.queue);
    if (mesh_.size(Axis::Shard) == 1) {
      nn::materialize(*part.module);
      part.attached = std::make_unique<DataParallel>(
          *part.module, of_stage_, DataParallelOptions{.buckets = options_.buckets});
      continue;
    }
    // The units of several stages do not come in one order in every micro-batch.
    const bool for_a_step = options_.keep_gathered || part.stages.size() > 1;
    part.attached = std::make_unique<FullySharded>(
        *part.module, of_stage_,
        FullyShardedOptions{.sharding = options_.sharding,
                            .gathered = for_a_step ? Gathered::ForAStep : Gathered::ForALayer});
  }
}

void Pipeline::collect_parameters() {
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const Attached& attached = *parts_[p]->attached;
    const std::size_t first = parameters_.size();
    for (std::size_t i = 0; i < attached.parameters().size(); ++i) {
      parameters_.push_back(attached.parameters()[i]);
      places_.emplace_back(p, i);
    }
    for (Kept one : attached.kept()) {
      one.parameter += first;
      kept_.push_back(std::move(one));
    }
  }
  tied_ = std::make_unique<TiedParameters>(kept_, pipe_);
}

Stage& Pipeline::stage(int index) {
  return *std::find_if(stages_.begin(), stages_.end(),
                       [index](const Stage& one) { return one.index == index; });
}

/// Of the message that an action sends or receives: by the stage that it leaves forwards, or
/// arrives at backwards.
int Pipeline::tag(const Action& action) const {
  const bool forwards = action.act == Act::SendAct || action.act == Act::RecvAct;
  const bool arrives = action.act == Act::RecvAct || action.act == Act::SendGrad;
  const int boundary = action.stage - (arrives ? 1 : 0);
  return (boundary * schedule_.micros + action.micro) * 2 + (forwards ? 0 : 1);
}

double Pipeline::run(const std::vector<nn::MicroBatch>& micros) {
  core::check(micros.size() == static_cast<std::size_t>(schedule_.micros),
              "Pipeline: {} micro-batches, but schedule '{}' is for {}", micros.size(),
              schedule_.name, schedule_.micros);
  const auto& program = schedule_.programs[static_cast<std::size_t>(pipe_.rank())];
  micros_ = &micros;
  expected_ = 0;
  alive_ = peak_alive_ = 0;
  ++steps_;
  loss_sum_ = loss_weight_ = at::Tensor();
  for (const auto& part : parts_) part->completed = 0;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const Action& action = program[i];
    const auto began = core::Trace::Clock::now();
    try {
      pipe_.note(fmt::format("{} (action {} of {} of '{}', step {})", to_text(action), i + 1,
                             program.size(), schedule_.name, steps_));
      expect_ahead(i);
      transfers_.advance();
      run(action,
          i == last_of_[static_cast<std::size_t>(action.stage)] ? Micro::Last : Micro::More);
    } catch (const CommError& error) {
      throw CommError(fmt::format("{}; this rank was at {}, action {} of {} of schedule '{}'",
                                  error.what(), to_text(action), i + 1, program.size(),
                                  schedule_.name));
    }
    if (options_.trace)
      options_.trace->add(core::Trace::Row::Actions, to_text(action), began,
                          core::Trace::Clock::now());
  }
  transfers_.finish_sends();
  pipe_.note(fmt::format("what follows the schedule '{}' of step {}", schedule_.name, steps_));
  return loss_sum_.defined() ? loss_sum_.item<double>() : 0;
}

/// Posts the receives of the next actions, so that what arrives need not wait for us.
void Pipeline::expect_ahead(std::size_t at) {
  const auto& program = schedule_.programs[static_cast<std::size_t>(pipe_.rank())];
  std::size_t posted = 0;
  for (std::size_t i = at; i < program.size() && posted < kAhead; ++i) {
    const Action& action = program[i];
    if (action.act != Act::RecvAct && action.act != Act::RecvGrad) continue;
    ++posted;
    if (i < expected_) continue;
    const int from = schedule_.rank_of(action.stage + (action.act == Act::RecvAct ? -1 : 1));
    transfers_.expect(from, tag(action));
    expected_ = i + 1;
  }
}

void Pipeline::run(const Action& action, Micro micro) {
  Stage& at = stage(action.stage);
  switch (action.act) {
    case Act::Forward: return forward(at, action.micro);
    case Act::Backward:
    case Act::BackwardInput: return backward(at, action, micro);
    case Act::BackwardWeight: return backward_weights(at, action.micro, micro);
    case Act::SendAct:
      return transfers_.send(take(at.outputs, action.micro), schedule_.rank_of(at.index + 1),
                             tag(action));
    case Act::SendGrad:
      return transfers_.send({take(at.gradients_out, action.micro), nullptr},
                             schedule_.rank_of(at.index - 1), tag(action));
    case Act::RecvAct:
      at.inputs.emplace(action.micro,
                        transfers_.take(schedule_.rank_of(at.index - 1), tag(action)));
      return;
    case Act::RecvGrad:
      at.gradients_in.emplace(
          action.micro, transfers_.take(schedule_.rank_of(at.index + 1), tag(action)).tensors);
      return;
    case Act::Unshard:
      if (at.part->holds++ == 0) at.part->attached->hold();
      return;
    case Act::Reshard:
      if (--at.part->holds == 0) at.part->attached->let_go();
      return;
    case Act::ReduceGrad:
      if (++at.part->completed == static_cast<int>(at.part->stages.size()))
        at.part->attached->gradients().start_rest();
      return;
    case Act::Update: TORCH_INTERNAL_ASSERT(false, "refused when the schedule was completed");
  }
}

nn::Flow Pipeline::input_of(Stage& stage, int micro) {
  if (stage.index > 0) return take(stage.inputs, micro);
  const nn::Flow& in = (*micros_)[static_cast<std::size_t>(micro)].inputs;
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& one : in.tensors) tensors.push_back(one.to(mesh_.device()));
  return {std::move(tensors), in.where};
}

void Pipeline::forward(Stage& stage, int micro) {
  nn::Flow flow = input_of(stage, micro);
  Alive alive{.inputs = flow.tensors, .roots = {}};
  const auto add_root = [&](const at::Tensor& one) {
    const bool needs = one.defined() && one.requires_grad();
    alive.roots.push_back(needs ? ag::impl::gradient_edge(one) : ag::Edge());
  };
  const bool ends = stage.index + 1 == schedule_.stages();
  for (const nn::Link* link : stage.links) flow = link->forward(std::move(flow));
  if (ends) {
    const auto& targets = (*micros_)[static_cast<std::size_t>(micro)].targets;
    const nn::Loss loss = chain_.loss(flow, targets.to(mesh_.device()));
    const at::Tensor sum = loss.sum.detach().to(at::kDouble);
    loss_sum_ = loss_sum_.defined() ? loss_sum_ + sum : sum;
    loss_weight_ = loss_weight_.defined() ? loss_weight_ + loss.weight : loss.weight;
    add_root(loss.sum);
    alive.seeds = {at::ones_like(loss.sum.detach())};
  } else {
    for (const at::Tensor& one : flow.tensors) add_root(one);
    stage.outputs.emplace(micro, std::move(flow));
    hand_on(stage, micro);
  }
  stage.part->attached->end_forward();
  stage.alive.emplace(micro, std::move(alive));
  peak_alive_ = std::max(peak_alive_, ++alive_);
}

/// What the next stage, or the one before, gets without a transfer: it is on this rank.
void Pipeline::hand_on(Stage& from, int micro) {
  const bool forwards = from.outputs.contains(micro);
  const int to = from.index + (forwards ? 1 : -1);
  if (to < 0 || schedule_.rank_of(to) != pipe_.rank()) return;
  if (!forwards) {
    stage(to).gradients_in.emplace(micro, take(from.gradients_out, micro));
    return;
  }
  const nn::Flow flow = take(from.outputs, micro);
  stage(to).inputs.emplace(micro, nn::Flow(leaves_of(flow.tensors), flow.where));
}

void Pipeline::backward(Stage& stage, const Action& action, Micro micro) {
  Alive& alive = stage.alive.at(action.micro);
  const auto given = stage.index + 1 == schedule_.stages() ? std::move(alive.seeds)
                                                           : take(stage.gradients_in, action.micro);
  core::check(given.size() == alive.roots.size(), "stage {}: {} gradients came back for {} outputs",
              stage.index, given.size(), alive.roots.size());
  ag::edge_list roots;
  ag::variable_list seeds;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!given[i].defined() || !alive.roots[i].is_valid()) continue;
    roots.push_back(std::move(alive.roots[i]));
    seeds.push_back(given[i]);
  }
  alive.roots.clear();
  const auto body = [&] {
    if (roots.empty()) return;  // nothing of it counted
    ag::Engine::get_default_engine().execute(roots, seeds, /*keep_graph=*/false,
                                             /*create_graph=*/false, /*accumulate_grad=*/true, {});
    roots.clear();
  };
  if (action.act == Act::Backward)
    stage.part->attached->collect(micro, body);
  else
    alive.jobs = stage.part->attached->defer(*stage.part->queue, body);
  if (stage.index > 0) {
    std::vector<at::Tensor> back;
    for (at::Tensor& one : alive.inputs) back.push_back(one.defined() ? one.grad() : one);
    stage.gradients_out.emplace(action.micro, std::move(back));
    hand_on(stage, action.micro);
  }
  alive.inputs.clear();
  if (action.act != Act::Backward) return;
  stage.alive.erase(action.micro);
  --alive_;
}

void Pipeline::backward_weights(Stage& stage, int micro, Micro last) {
  Alive alive = take(stage.alive, micro);
  stage.part->attached->collect(last, [&] {
    for (nn::WeightJob& job : alive.jobs) {
      nn::deliver(job);
      job = {};  // what it held is free
    }
  });
  --alive_;
}

std::pair<double, double> Pipeline::evaluate(const std::vector<nn::MicroBatch>& micros) {
  const at::NoGradGuard guard;
  micros_ = &micros;
  double sum = 0, weight = 0;
  // Stage by stage: nobody waits for what comes after it.
  for (Stage& stage : stages_) {
    const bool ends = stage.index + 1 == schedule_.stages();
    for (int micro = 0; micro < static_cast<int>(micros.size()); ++micro) {
      transfers_.advance();
      const int before = stage.index > 0 ? schedule_.rank_of(stage.index - 1) : pipe_.rank();
      if (before != pipe_.rank())
        stage.inputs.emplace(micro, transfers_.take(before, kEvaluationTag + stage.index));
      nn::Flow flow = input_of(stage, micro);
      for (const nn::Link* link : stage.links) flow = link->forward(std::move(flow));
      if (ends) {
        const auto& targets = micros[static_cast<std::size_t>(micro)].targets;
        const nn::Loss loss = chain_.loss(flow, targets.to(mesh_.device()));
        sum += loss.sum.item<double>();
        weight += loss.weight.item<double>();
        continue;
      }
      const int next = schedule_.rank_of(stage.index + 1);
      stage.outputs.emplace(micro, std::move(flow));
      if (next == pipe_.rank())
        hand_on(stage, micro);
      else
        transfers_.send(take(stage.outputs, micro), next, kEvaluationTag + stage.index + 1);
    }
  }
  transfers_.finish_sends();
  return {sum, weight};
}

Totals Pipeline::finish(std::span<const double> values, Divide divide) {
  const at::NoGradGuard guard;
  // Only the last stage knows weights, and of ranks that compute it together one counts.
  at::Tensor sums = at::zeros({1 + static_cast<int64_t>(values.size())}, at::kDouble);
  double* all = sums.data_ptr<double>();
  if (loss_weight_.defined() && mesh_.coord(Axis::Tensor) == 0)
    all[0] = loss_weight_.item<double>();
  std::copy(values.begin(), values.end(), all + 1);
  mesh_.world().all_reduce(sums).wait();
  for (const auto& part : parts_) {
    part->attached->gradients().set_weight(all[0]);
    part->attached->finish({}, Divide::Later);
  }
  tied_->sum_gradients();
  if (divide == Divide::Now && all[0] != 0)
    for (const Kept& one : kept_)
      if (one.tensor.grad().defined()) one.tensor.mutable_grad().div_(all[0]);
  loss_sum_ = loss_weight_ = at::Tensor();
  return {all[0], {all + 1, all + sums.numel()}};
}

void Pipeline::updated() {
  for (const auto& part : parts_) part->attached->updated();
}

void Pipeline::check_same() const {
  for (const auto& part : parts_) part->attached->check_same();
  tied_->check_same();
}

std::vector<Kept> Pipeline::frozen() const {
  std::vector<Kept> all;
  for (const auto& part : parts_)
    for (Kept& one : part->attached->frozen()) all.push_back(std::move(one));
  return all;
}

at::Tensor Pipeline::value(std::size_t parameter) {
  const auto [part, index] = places_[parameter];
  return parts_[part]->attached->value(index);
}

at::Tensor Pipeline::gradient(std::size_t parameter) {
  const auto [part, index] = places_[parameter];
  return parts_[part]->attached->gradient(index);
}

std::vector<std::string> Pipeline::order() const {
  std::vector<std::string> names;
  for (const auto& part : parts_)
    for (std::string& name : part->attached->order()) names.push_back(std::move(name));
  return names;
}

void Pipeline::set_order(const std::vector<std::string>& names) {
  for (const auto& part : parts_) part->attached->set_order(names);
}

int64_t Pipeline::gradient_bytes() const {
  int64_t bytes = 0;
  for (const auto& part : parts_) bytes += part->attached->gradient_bytes();
  return bytes;
}

std::vector<torch::nn::Module*> Pipeline::modules() {
  std::vector<torch::nn::Module*> all;
  for (const auto& part : parts_) all.push_back(part->module.get());
  return all;
}

}  // namespace trireme::parallel
