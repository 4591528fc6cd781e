#include "trireme/train/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/nn/bind.h"
#include "trireme/nn/recompute.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/parallel/fully_sharded.h"
#include "trireme/parallel/norm.h"
#include "trireme/train/model_state.h"
#include "trireme/train/stages.h"

namespace trireme::train {

namespace {

optim::Schedule rate_schedule(const config::Optim& keys, int64_t steps) {
  using Kind = optim::Schedule::Kind;
  return {.kind = keys.schedule == config::RateSchedule::Constant ? Kind::Constant
                  : keys.schedule == config::RateSchedule::Linear ? Kind::Linear
                                                                  : Kind::Cosine,
          .peak = keys.lr,
          .warmup = keys.warmup,
          .steps = steps,
          .final = keys.final};
}

/// By the shape of the whole: a rank may hold a part.
std::string describe(const parallel::Kept& kept) {
  return fmt::format("'{}' [{}]", kept.name, fmt::join(kept.pieces.front().whole, ", "));
}

}  // namespace

std::shared_ptr<nn::ModelImpl> build(const ModelFactory& model, const Mesh& mesh) {
  std::optional<nn::Deferred> deferred;
  if (mesh.size(Axis::Shard) > 1 || mesh.size(Axis::Pipe) > 1) deferred.emplace();
  return model(mesh);
}

Trainer::Trainer(const config::Config& config, const Mesh& mesh,
                 std::shared_ptr<nn::ModelImpl> model, int64_t steps, Extras extras)
    : config_(config),
      mesh_(mesh),
      model_(prepare(std::move(model))),
      attached_(attach(extras)),
      optimizer_(make_optimizer()),
      schedule_(rate_schedule(config.optim, steps)) {}

std::shared_ptr<nn::ModelImpl> Trainer::prepare(std::shared_ptr<nn::ModelImpl> model) const {
  // In its dtype first: initial weights are computed in double and rounded once.
  const bool wide = config_.precision.compute == config::Dtype::Float64;
  nn::move_to(*model, wide ? at::kDouble : at::kFloat, mesh_.device());
  nn::initialize(*model, static_cast<uint64_t>(config_.run.seed));
  if (config_.memory.recompute == config::Recompute::Block)
    for (const auto& block : model->blocks()) nn::recompute(*block);
  if (config_.memory.recompute == config::Recompute::Selective)
    for (const auto& attention : model->attentions()) nn::recompute(*attention);
  return model;
}

std::unique_ptr<parallel::Attached> Trainer::attach(const Extras& extras) {
  using parallel::Sharding;
  const config::ShardedState what = config_.memory.shard;
  const Sharding sharding = what == config::ShardedState::Optimizer   ? Sharding::Optimizer
                            : what == config::ShardedState::Gradients ? Sharding::Gradients
                                                                      : Sharding::Parameters;
  const parallel::BucketSizes buckets{
      .bytes = static_cast<int64_t>(config_.comm.bucket_mib * (1 << 20))};
  if (mesh_.size(Axis::Pipe) > 1) {
    auto made = make_pipeline(config_, mesh_, *model_,
                              {.cut = extras.cut,
                               .buckets = buckets,
                               .sharding = sharding,
                               .keep_gathered = config_.pipeline.keep_gathered,
                               .trace = extras.trace});
    pipeline_ = made.get();
    return made;
  }
  std::unique_ptr<parallel::AttachedModule> made;
  if (mesh_.size(Axis::Shard) == 1)
    made = std::make_unique<parallel::DataParallel>(
        *model_, mesh_, parallel::DataParallelOptions{.buckets = buckets});
  else
    made = std::make_unique<parallel::FullySharded>(
        *model_, mesh_, parallel::FullyShardedOptions{.sharding = sharding});
  module_ = made.get();
  return made;
}

std::unique_ptr<optim::Optimizer> Trainer::make_optimizer() const {
  std::vector<optim::Slot> slots;
  for (const parallel::Kept& one : kept())  // by the shape of the whole, not of a shard
    slots.push_back(
        {one.name, one.tensor, optim::is_decayed(parameters()[one.parameter].layout.whole())});
  const config::Optim& keys = config_.optim;
  // On the CPU the state is in the host's memory anyway.
  const bool offloads =
      config_.memory.offload == config::Offload::Optimizer && !mesh_.device().is_cpu();
  const auto where = offloads ? optim::StateIn::Host : optim::StateIn::Device;
  if (keys.kind == config::OptimizerKind::Sgd)
    return optim::make_sgd(std::move(slots),
                           {.momentum = keys.momentum, .weight_decay = keys.weight_decay}, where);
  return optim::make_adamw(std::move(slots),
                           {.beta1 = keys.betas[0],
                            .beta2 = keys.betas[1],
                            .epsilon = keys.eps,
                            .weight_decay = keys.weight_decay},
                           where);
}

int64_t Trainer::num_micros(const data::Batch& batch) const {
  if (pipeline_ != nullptr) return pipeline_->schedule().micros;
  return micros_of(batch.largest_block, config_.batch.micro);
}

/// This rank's rows as micro-batches. Those of a pipeline are even, and always as many as its
/// schedule has, also where the batch is short.
std::vector<nn::MicroBatch> Trainer::cut(int64_t step, const data::Batch& batch) const {
  const int64_t rows = batch.inputs.size(0), most = config_.batch.micro;
  const int64_t count = num_micros(batch);
  std::vector<nn::MicroBatch> micros;
  for (int64_t micro = 0; micro < count; ++micro) {
    int64_t begin = std::min(rows, micro * most), end = std::min(rows, begin + most);
    if (pipeline_ != nullptr) {
      const Part part = even_part(rows, static_cast<int>(count), static_cast<int>(micro));
      begin = part.begin;
      end = part.begin + part.count;
    }
    auto where = std::make_shared<nn::Where>();
    where->step = step;
    where->micro = micro;
    where->sample_ids = {batch.sample_ids.begin() + begin, batch.sample_ids.begin() + end};
    micros.push_back({nn::Flow(batch.inputs.slice(0, begin, end), std::move(where)),
                      batch.targets.slice(0, begin, end)});
  }
  return micros;
}

/// Forward and backward of this rank's rows; the sum of the losses that it has computed.
double Trainer::run_micros(const std::vector<nn::MicroBatch>& micros) {
  if (pipeline_ != nullptr) return pipeline_->run(micros);
  double sum = 0;
  for (std::size_t i = 0; i < micros.size(); ++i) {
    const nn::Loss loss = loss_of(micros[i]);
    sum += loss.sum.item<double>();
    module_->backward(loss, i + 1 < micros.size() ? parallel::Micro::More : parallel::Micro::Last);
  }
  return sum;
}

/// A model that throws leaves nothing of the step behind.
nn::Loss Trainer::loss_of(const nn::MicroBatch& micro) {
  try {
    const nn::Flow& in = micro.inputs;
    return model_->loss({in.x().to(mesh_.device()), in.where}, micro.targets.to(mesh_.device()));
  } catch (const CommError&) {  // the world is at its end
    throw;
  } catch (...) {
    module_->discard();
    throw;
  }
}

StepResult Trainer::step(int64_t step, const data::Batch& batch, double wish_to_stop) {
  // The ranks of a tensor axis have the same loss: it counts once.
  const double sum = run_micros(cut(step, batch));
  const double values[] = {mesh_.coord(Axis::Tensor) == 0 ? sum : 0, wish_to_stop};
  const parallel::Totals totals = attached_->finish(values, parallel::Divide::Later);
  StepResult result{.weight = totals.weight, .lr = schedule_.at(step), .stop = totals.sums[1]};
  if (totals.weight == 0) {
    result.loss = std::numeric_limits<double>::quiet_NaN();
    return result;
  }
  result.loss = totals.sums[0] / totals.weight;
  if (look_) look_(step, totals.weight);
  result.grad_norm = parallel::gradient_norm(kept(), mesh_) / totals.weight;
  if (config_.check.finite && !(std::isfinite(result.loss) && std::isfinite(result.grad_norm)))
    report_not_finite(step, result.loss);
  optimizer_->step(result.lr,
                   totals.weight * optim::clip_divisor(result.grad_norm, config_.optim.clip));
  attached_->updated();
  return result;
}

void Trainer::report_not_finite(int64_t step, double loss) const {
  const auto bad = [](const at::Tensor& tensor) {
    return tensor.defined() && !tensor.isfinite().all().item<bool>();
  };
  // Parameters first: a gradient is only as good as what it was computed from.
  std::string mine;
  const auto& all = kept();
  const auto parameter =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return bad(one.tensor); });
  const auto gradient =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return bad(one.tensor.grad()); });
  if (parameter != all.end())
    mine = fmt::format("parameter {}", describe(*parameter));
  else if (gradient != all.end())
    mine = fmt::format("the gradient of {}", describe(*gradient));
  // Another rank may hold the part that went wrong; all are here, since all saw the same norm.
  std::string first = "no parameter or gradient, so it arose in the loss itself";
  const auto texts = comm::all_gather_texts(mesh_.world(), mine);
  for (std::size_t rank = texts.size(); rank-- > 0;)
    if (!texts[rank].empty()) first = texts[rank];
  throw Error(fmt::format(
      "step {}: the loss is {}, the first tensor that is not finite is {}; nothing was updated. "
      "Lower optim.lr, or continue from the last checkpoint",
      step, loss, first));
}

double Trainer::evaluate(const data::Dataset& dataset, int64_t batches) {
  const at::NoGradGuard guard;
  const comm::Communicator ranks = mesh_.samples();
  struct Training {  // again, also after a throw
    nn::ModelImpl& model;
    ~Training() { model.train(); }
  } const after{*model_};
  model_->eval();
  const int64_t limit =
      batches > 0 ? std::min(dataset.size(), batches * config_.batch.global) : dataset.size();
  const Part mine = even_part(limit, ranks.size(), ranks.rank());
  // Every rank runs as many micro-batches as the first, which has most: the last may be empty.
  const int64_t most = even_part(limit, ranks.size(), 0).count;
  const auto together = static_cast<std::size_t>(
      pipeline_ != nullptr ? pipeline_->schedule().micros : 1);  // so many go through at a time
  at::Tensor totals = at::zeros({2}, at::kDouble);
  std::vector<nn::MicroBatch> micros;
  for (int64_t begin = 0; begin < most; begin += config_.batch.micro) {
    const int64_t end = std::min(mine.count, begin + config_.batch.micro);
    std::vector<at::Tensor> inputs, targets;
    for (int64_t i = begin; i < std::max(end, begin + 1); ++i) {  // one, for the shape
      data::Sample sample = dataset.get(std::min(mine.begin + i, limit - 1));
      inputs.push_back(std::move(sample.input));
      targets.push_back(std::move(sample.target));
    }
    const int64_t rows = std::max<int64_t>(0, end - begin);
    micros.push_back({at::stack(inputs).slice(0, 0, rows), at::stack(targets).slice(0, 0, rows)});
    if (micros.size() < together && begin + config_.batch.micro < most) continue;
    const auto [sum, weight] = evaluate(micros);
    totals[0] += sum;
    totals[1] += weight;
    micros.clear();
  }
  mesh_.group({Axis::Pipe, Axis::Replica, Axis::Shard}).all_reduce(totals).wait();
  return totals[0].item<double>() / totals[1].item<double>();
}

std::pair<double, double> Trainer::evaluate(const std::vector<nn::MicroBatch>& micros) {
  if (pipeline_ != nullptr) return pipeline_->evaluate(micros);
  double sum = 0, weight = 0;
  for (const nn::MicroBatch& one : micros) {
    const nn::Loss loss =
        model_->loss(one.inputs.x().to(mesh_.device()), one.targets.to(mesh_.device()));
    sum += loss.sum.item<double>();
    weight += loss.weight.item<double>();
  }
  return {sum, weight};
}

checkpoint::State Trainer::state() const {
  checkpoint::State state = state_of(*attached_, *optimizer_);
  if (pipeline_ != nullptr) state.extra["pipeline_cut"] = pipeline_->cut();
  return state;
}

void Trainer::restore(const core::Json& extra) {
  train::restore(*attached_, *optimizer_, extra);
}

int64_t Trainer::num_parameters() const {
  int64_t count = 0;
  for (const nn::Parameter& one : nn::parameters_of(*model_))
    count += Box{{}, one.layout.whole()}.numel();
  return count;
}

}  // namespace trireme::train
