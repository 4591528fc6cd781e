#include "trireme/train/trainer.h"

#include <fmt/ranges.h>

#include <cmath>
#include <limits>

#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/nn/bind.h"
#include "trireme/nn/recompute.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/parallel/fully_sharded.h"
#include "trireme/parallel/norm.h"

namespace trireme::train {

namespace {

optim::Schedule schedule_of(const config::Optim& keys, int64_t steps) {
  using Kind = optim::Schedule::Kind;
  return {.kind = keys.schedule == "constant" ? Kind::Constant
                  : keys.schedule == "linear" ? Kind::Linear
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

void refuse_unbuilt(const config::Config& config) {
  const auto refuse = [](const std::string& what, const std::string& have) {
    throw ConfigError(fmt::format("{} is not built yet; this version has {}", what, have));
  };
  const config::MeshKeys& mesh = config.mesh;
  const std::pair<const char*, int64_t> axes[] = {
      {"pipe", mesh.pipe}, {"context", mesh.context}, {"expert", mesh.expert}};
  for (const auto& [axis, degree] : axes) {
    if (degree != 1)
      refuse(fmt::format("mesh.{} = {}", axis, degree), "mesh.replica, mesh.shard and mesh.tensor");
  }
  for (const std::string& precision : {config.precision.compute, config.precision.reduce}) {
    if (precision != "float32" && precision != "float64")
      refuse(fmt::format("precision \"{}\"", precision), "float32 and float64");
  }
  if (config.precision.compute == "float32" && config.precision.reduce == "float64")
    refuse("precision.reduce = \"float64\" with compute \"float32\"", "both alike");
  if (config.sync.kind != "lockstep")
    refuse(fmt::format("sync.kind = \"{}\"", config.sync.kind), "\"lockstep\"");
  if (config.compress.kind != "none")
    refuse(fmt::format("compress.kind = \"{}\"", config.compress.kind), "\"none\"");
  if (config.data.kind != "markov" && config.data.kind != "tokens")
    refuse(fmt::format("data.kind = \"{}\"", config.data.kind), "\"markov\" and \"tokens\"");
  if (config.log.trace) refuse("log.trace", "metrics.jsonl");
  if (config.log.tensorboard) refuse("log.tensorboard", "metrics.jsonl");
  if (config.comm.backend == "mpi" || config.comm.backend == "nccl")
    refuse(fmt::format("comm.backend = \"{}\"", config.comm.backend), "auto, shm, tcp and local");
}

std::shared_ptr<nn::ModelImpl> build(const ModelFactory& model, const Mesh& mesh) {
  std::optional<nn::Deferred> deferred;
  if (mesh.size(Axis::Shard) > 1) deferred.emplace();
  return model(mesh);
}

Trainer::Trainer(const config::Config& config, const Mesh& mesh,
                 std::shared_ptr<nn::ModelImpl> model, int64_t steps)
    : config_(config),
      mesh_(mesh),
      model_(prepare(std::move(model))),
      attached_(attach()),
      optimizer_(make_optimizer()),
      schedule_(schedule_of(config.optim, steps)) {}

std::shared_ptr<nn::ModelImpl> Trainer::prepare(std::shared_ptr<nn::ModelImpl> model) const {
  // In its dtype first: initial weights are computed in double and rounded once.
  const bool wide = config_.precision.compute == "float64";
  nn::move_to(*model, wide ? at::kDouble : at::kFloat, mesh_.device());
  nn::initialize(*model, static_cast<uint64_t>(config_.run.seed));
  if (config_.memory.recompute == "block")
    for (const auto& block : model->blocks()) nn::recompute(*block);
  if (config_.memory.recompute == "selective")
    for (const auto& attention : model->attentions()) nn::recompute(*attention);
  return model;
}

std::unique_ptr<parallel::Attached> Trainer::attach() const {
  if (mesh_.size(Axis::Shard) == 1)
    return std::make_unique<parallel::DataParallel>(
        *model_, mesh_,
        parallel::DataParallelOptions{
            .buckets = {.bytes = static_cast<int64_t>(config_.comm.bucket_mib * (1 << 20))}});
  using parallel::Sharding;
  const std::string& what = config_.memory.shard;
  return std::make_unique<parallel::FullySharded>(
      *model_, mesh_,
      parallel::FullyShardedOptions{.sharding = what == "optimizer"   ? Sharding::Optimizer
                                                : what == "gradients" ? Sharding::Gradients
                                                                      : Sharding::Parameters});
}

std::unique_ptr<optim::Optimizer> Trainer::make_optimizer() const {
  std::vector<optim::Slot> slots;
  for (const parallel::Kept& one : kept())  // by the shape of the whole, not of a shard
    slots.push_back(
        {one.name, one.tensor, optim::is_decayed(parameters()[one.parameter].layout.whole())});
  const config::Optim& keys = config_.optim;
  // On the CPU the state is in the host's memory anyway.
  const bool offloads = config_.memory.offload == "optimizer" && !mesh_.device().is_cpu();
  const auto where = offloads ? optim::StateIn::Host : optim::StateIn::Device;
  if (keys.kind == "sgd")
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
  const int64_t most = config_.batch.micro;
  return std::max<int64_t>(1, (batch.largest_block + most - 1) / most);
}

/// Forward and backward of this rank's rows; the sum of its losses.
double Trainer::run_micros(int64_t step, const data::Batch& batch) {
  const int64_t rows = batch.inputs.size(0), most = config_.batch.micro;
  const int64_t micros = num_micros(batch);
  double sum = 0;
  for (int64_t micro = 0; micro < micros; ++micro) {
    const int64_t begin = std::min(rows, micro * most), end = std::min(rows, begin + most);
    auto where = std::make_shared<nn::Where>();
    where->step = step;
    where->micro = micro;
    where->sample_ids = {batch.sample_ids.begin() + begin, batch.sample_ids.begin() + end};
    const nn::Flow inputs(batch.inputs.slice(0, begin, end).to(mesh_.device()), where);
    const nn::Loss loss =
        model_->loss(inputs, batch.targets.slice(0, begin, end).to(mesh_.device()));
    sum += loss.sum.item<double>();
    attached_->backward(loss, micro + 1 < micros ? parallel::Micro::More : parallel::Micro::Last);
  }
  return sum;
}

StepResult Trainer::step(int64_t step, const data::Batch& batch, double wish_to_stop) {
  // The ranks of a tensor axis have the same loss: it counts once.
  const double sum = run_micros(step, batch);
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
  model_->eval();
  const int64_t limit =
      batches > 0 ? std::min(dataset.size(), batches * config_.batch.global) : dataset.size();
  const Part mine = even_part(limit, ranks.size(), ranks.rank());
  // Every rank runs as many micro-batches as the first, which has most: the last may be empty.
  const int64_t most = even_part(limit, ranks.size(), 0).count;
  double sum = 0, weight = 0;
  for (int64_t begin = 0; begin < most; begin += config_.batch.micro) {
    const int64_t end = std::min(mine.count, begin + config_.batch.micro);
    std::vector<at::Tensor> inputs, targets;
    for (int64_t i = begin; i < std::max(end, begin + 1); ++i) {  // one, for the shape
      data::Sample sample = dataset.get(std::min(mine.begin + i, limit - 1));
      inputs.push_back(std::move(sample.input));
      targets.push_back(std::move(sample.target));
    }
    const int64_t rows = std::max<int64_t>(0, end - begin);
    const nn::Loss loss = model_->loss(at::stack(inputs).slice(0, 0, rows).to(mesh_.device()),
                                       at::stack(targets).slice(0, 0, rows).to(mesh_.device()));
    sum += loss.sum.item<double>();
    weight += loss.weight.item<double>();
  }
  model_->train();
  at::Tensor totals = at::tensor({sum, weight}, at::kDouble);
  ranks.all_reduce(totals).wait();
  return totals[0].item<double>() / totals[1].item<double>();
}

checkpoint::State Trainer::state() const {
  checkpoint::State state;
  const auto add = [&](const std::string& prefix, const parallel::Kept& kept,
                       const at::Tensor& tensor) {
    for (std::size_t i = 0; i < kept.pieces.size(); ++i) {
      Piece piece = kept.pieces[i];
      piece.name = prefix + piece.name;
      state.items.push_back(
          {std::move(piece), kept.part(tensor, i), kept.held[i].first, kept.sharded});
    }
  };
  for (const parallel::Kept& one : kept()) add("", one, one.tensor);
  for (const parallel::Kept& one : attached_->frozen()) add("", one, one.tensor);
  for (const auto& buffer : model_->named_buffers()) {
    checkpoint::Item item = checkpoint::whole("buffer/" + buffer.key(), buffer.value());
    item.first = mesh_.coord(Axis::Tensor) == 0;
    state.items.push_back(std::move(item));
  }
  for (const optim::State& one : optimizer_->states())
    add(fmt::format("optim/{}/", one.kind), kept()[one.slot], one.tensor);
  core::Json steps = core::Json::object();
  const auto counts = optimizer_->steps();
  for (std::size_t i = 0; i < counts.size(); ++i) steps[kept()[i].name] = counts[i];
  state.extra["optimizer"] = {{"kind", optimizer_->kind()}, {"steps", steps}};
  state.extra["bucket_order"] = attached_->gradients().order();
  return state;
}

void Trainer::restore(const core::Json& extra) {
  const core::Json& saved = extra.at("optimizer");
  if (saved.at("kind") != optimizer_->kind())
    throw CheckpointError(
        fmt::format("the checkpoint was made with optim.kind = \"{}\", this run "
                    "has \"{}\"",
                    saved.at("kind").get<std::string>(), optimizer_->kind()));
  std::vector<int64_t> counts;
  for (const optim::Slot& slot : optimizer_->slots()) {
    if (!saved.at("steps").contains(slot.name))
      throw CheckpointError(
          fmt::format("the checkpoint has no optimizer state for '{}'", slot.name));
    counts.push_back(saved.at("steps").at(slot.name));
  }
  optimizer_->set_steps(counts);
  const auto order = extra.at("bucket_order").get<std::vector<std::string>>();
  if (!order.empty()) attached_->gradients().set_order(order);
  attached_->updated();
}

int64_t Trainer::num_parameters() const {
  int64_t count = 0;
  for (const nn::Parameter& one : nn::parameters_of(*model_))
    count += Box{{}, one.layout.whole()}.numel();
  return count;
}

}  // namespace trireme::train
