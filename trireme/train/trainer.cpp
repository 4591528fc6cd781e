#include "trireme/train/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/nn/bind.h"
#include "trireme/parallel/step_end.h"
#include "trireme/train/adapter_facts.h"
#include "trireme/train/datasets.h"
#include "trireme/train/parameter_groups.h"
#include "trireme/train/recomputation.h"
#include "trireme/train/server_job.h"

namespace trireme::train {

namespace {

/// The learning rate of every update.
std::vector<double> learning_rates(const config::Optim& keys, int64_t steps) {
  using Kind = optim::LearningRateSchedule::Kind;
  const optim::LearningRateSchedule schedule{
      .kind = keys.schedule == config::RateSchedule::Constant ? Kind::Constant
              : keys.schedule == config::RateSchedule::Linear ? Kind::Linear
                                                              : Kind::Cosine,
      .peak = keys.lr,
      .warmup = keys.warmup,
      .steps = steps,
      .final = keys.final};
  std::vector<double> rates;
  for (int64_t step = 1; step <= steps; ++step) rates.push_back(schedule.at(step));
  return rates;
}

optim::UpdateControlOptions control_options(const config::Config& config, int64_t steps) {
  return {.rates = learning_rates(config.optim, steps),
          .clip = config.optim.clip,
          .check_finite = config.check.finite,
          .scales = config.precision.compute == config::Dtype::Float16,
          .first_scale = config.precision.loss_scale,
          .growth = config.precision.growth,
          .expected_weight = static_cast<double>(config.batch.global * config.model.targets())};
}

/// How the steps of one of several replicas are made: what it sends at meetings is no part of it,
/// and its pipeline runs its own rows only.
config::Config config_of_steps(config::Config config, int replicas) {
  if (!is_local(config)) return config;
  config.batch.global = even_range(config.batch.global, replicas, 0).count;
  config.compress.kind = config::Compression::None;
  // Replicas that measure times of their own could cut the model in different ways.
  if (config.pipeline.balance.by == config::Balance::By::Time)
    config.pipeline.balance.by = config::Balance::By::Parameters;
  return config;
}

AttachOptions with_recompute(AttachOptions options, nn::RecomputeSwitchPtr recompute) {
  options.recompute = std::move(recompute);
  return options;
}

/// Where the numbers of a started step begin: those of UpdateControl, and whether the step skips.
constexpr int64_t kControl = 3, kSkipped = kControl + optim::UpdateControl::kNumbers;

constexpr double kLeastScale = 0x1p-10;  // below it gradients of any size would be finite

/// Loss, weight, right choices, and 1 if they were counted.
at::Tensor numbers_of(const parallel::LossTotals& totals) {
  const bool counted = totals.correct.defined();
  const at::Tensor correct = counted ? totals.correct : at::zeros_like(totals.sum);
  return at::stack({totals.sum, totals.weight, correct, at::full_like(totals.sum, counted ? 1 : 0)})
      .cpu();
}

/// The name and the shape of the whole; a rank may hold only a part.
std::string describe(const parallel::ParameterShard& shard) {
  return fmt::format("'{}' [{}]", shard.name, fmt::join(shard.pieces.front().whole, ", "));
}

}  // namespace

Trainer::Trainer(config::Config config, Mesh mesh, std::shared_ptr<nn::ModelImpl> model,
                 int64_t steps, const AttachOptions& options)
    : config_(std::move(config)),
      mesh_(std::move(mesh)),
      positions_(positions_of(config_, mesh_)),
      replicas_(replica_meshes(config_, mesh_)),
      model_(prepare(std::move(model))),
      recompute_(recompute(with_worker_rows(config_, options.workers), mesh_, *model_)),
      attached_(
          attach(with_worker_rows(config_of_steps(config_, replicas_ ? replicas_->count() : 1),
                                  options.workers),
                 step_mesh(), *model_, with_recompute(options, recompute_))),
      servers_(options.on_servers ? options.on_servers(*attached_) : nullptr),
      optimizer_(servers_ ? nullptr : make_optimizer()),
      local_(replicas_ ? make_local_updates(config_, *replicas_, attached_->shards()) : nullptr),
      control_(control_options(config_, steps), mesh_.device()),
      upload_(mesh_.device()),
      graph_(config_, step_mesh(), *model_, options),
      now_(control_.state()) {
  if (graph_.obstacle().empty()) attached_->close_steps();
  if (is_asynchronous())
    attached_->asynchronous()->on_update(
        [this](const parallel::Totals& totals) { update_stage(totals); });
}

std::shared_ptr<nn::ModelImpl> Trainer::prepare(std::shared_ptr<nn::ModelImpl> model) const {
  check_patterns(config_, *model);
  // Set the dtype first: initial weights are computed in double and rounded once. 16-bit weights
  // are made of these masters by what is attached.
  const bool wide = config_.precision.compute == config::Dtype::Float64;
  nn::move_to(*model, wide ? at::kDouble : at::kFloat, mesh_.device());
  nn::initialize(*model, static_cast<uint64_t>(config_.run.seed));
  return model;
}

std::unique_ptr<optim::Optimizer> Trainer::make_optimizer() const {
  std::vector<optim::Slot> slots;
  for (const parallel::ParameterShard& one : shards()) {
    const Recipe recipe = recipe_of(config_.optim, parameters()[one.parameter]);
    slots.push_back({.name = one.name,
                     .parameter = one.master,
                     .decay = recipe.weight_decay != 0,
                     .random_bits =
                         [one, parameter = parameters()[one.parameter]](int64_t updates) {
                           return parallel::random_bits(one, parameter, updates);
                         },
                     .weight = one.weight.is_alias_of(one.master) ? at::Tensor() : one.weight,
                     .rate = recipe.rate,
                     .weight_decay = recipe.weight_decay});
  }
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

parallel::BatchRows Trainer::rows_of(const data::Batch& batch) const {
  return {
      .mine = batch.inputs.size(0), .largest = batch.largest_block, .micro = config_.batch.micro};
}

/// What each row of a batch counts in the loss, for routers, whose losses count as much. Empty: the
/// model has none.
std::vector<double> Trainer::row_weights(const data::Batch& batch) const {
  if (!config_.model.has_experts()) return {};
  at::Tensor counts = (batch.targets != nn::kIgnored).flatten(1).sum(1).to(at::kDouble).cpu();
  const comm::Communicator& context = step_mesh().group(Axis::Context);  // shares the positions
  if (context.size() > 1) context.all_reduce(counts).wait();
  return {counts.data_ptr<double>(), counts.data_ptr<double>() + counts.numel()};
}

/// This rank's rows as micro-batches.
std::vector<nn::MicroBatch> Trainer::cut(int64_t step, const data::Batch& batch) const {
  std::vector<nn::MicroBatch> micros;
  const std::vector<double> weights = row_weights(batch);
  const at::Tensor loss_scale = control_.loss_scale();
  for (const auto& [begin, count] : attached_->micro_batches(rows_of(batch))) {
    auto where = std::make_shared<nn::Where>();
    where->step = step;
    where->micro = static_cast<int64_t>(micros.size());
    where->loss_scale = loss_scale;
    where->positions = positions_;
    if (batch.documents.defined()) where->documents = batch.documents.narrow(0, begin, count);
    where->sample_ids = {batch.sample_ids.begin() + begin,
                         batch.sample_ids.begin() + begin + count};
    if (!weights.empty())
      where->row_weights = {weights.begin() + begin, weights.begin() + begin + count};
    micros.push_back({nn::Flow(batch.inputs.narrow(0, begin, count), std::move(where)),
                      batch.targets.narrow(0, begin, count)});
  }
  return micros;
}

StepResult Trainer::step(int64_t step, const data::Batch& batch, double wish_to_stop) {
  start(step, batch, wish_to_stop);
  return take();
}

double Trainer::start(int64_t step, const data::Batch& batch, double wish_to_stop) {
  const data::Batch there = upload_.to_device(batch);
  if (is_asynchronous()) return start_asynchronous(step, there, wish_to_stop);
  StartedStep started{.step = step, .stop = 0, .numbers = {}, .came = {}};
  const auto all_of_it = [&](const data::Batch& one) {
    const Issued issued = issue(step, one, wish_to_stop);
    started.stop = issued.stop;
    return issued.numbers;
  };
  at::Tensor numbers;
  if (!watched() && graph_.takes(there)) {
    // An evaluation may have left gathered weights. A recording would not gather them again, and a
    // replay puts them out of date.
    attached_->updated(parallel::Weights::Rounded);
    numbers = graph_.run(there, all_of_it);
    started.replayed = true;
    if (!graph_.recorded_now()) started.stop = sum_of_wishes(wish_to_stop);
  } else {
    numbers = all_of_it(there);
  }
  if (config_.model.has_experts()) started.experts = expert_loads(*attached_);
  if (local_) end_local_step(started, batch, numbers);
  started.numbers = read_back(numbers, started.came);
  started_.push_back(std::move(started));
  return started_.back().stop;
}

/// Replicas that train on their own come together if it is time. Only then do they hear of a wish
/// to stop, so that all of them stop at the same step.
void Trainer::end_local_step(StartedStep& started, const data::Batch& batch,
                             const at::Tensor& numbers) {
  started.meeting = local_->end_step(
      {.number = started.step,
       .totals = numbers,
       // A batch that was claimed is this replica's; others are of all replicas together.
       .samples = static_cast<double>(batch.all_rows) /
                  (config_.sync.seconds > 0 ? 1 : replicas_->count()),
       .skipped = numbers[kSkipped],
       .rate = control_.rate_of(started.step),
       .stop = started.stop});
  started.stop = started.meeting ? started.meeting->stop : 0;
  if (started.meeting) attached_->updated();
}

void Trainer::place(int64_t updates) {
  control_.place(updates);
  now_.updates = updates;
}

parallel::Meeting Trainer::meet(double wish_to_stop) {
  const parallel::Meeting meeting =
      local_->meet({.rate = control_.rate_of(now_.updates), .stop = sum_of_wishes(wish_to_stop)});
  attached_->updated();
  return meeting;
}

/// A replayed step is one operation to the other ranks: they add up their wishes to stop.
double Trainer::sum_of_wishes(double wish_to_stop) const {
  const comm::Communicator& ranks = step_mesh().world();
  if (ranks.size() == 1) return wish_to_stop;
  at::Tensor sum = at::full({1}, wish_to_stop, at::kDouble);
  ranks.all_reduce(sum).wait();
  return sum.item<double>();
}

/// Tells a reducer that keeps residuals what it will divide gradients by: counts the targets of all
/// ranks while forward runs.
void Trainer::expect_weight(const data::Batch& batch) {
  if (!compresses() || at::isFloatingType(batch.targets.scalar_type())) return;
  const auto count = std::make_shared<at::Tensor>(
      (batch.targets != nn::kIgnored).sum(at::kLong).to(at::kDouble).cpu().view({1}));
  const auto work = std::make_shared<comm::Work>(mesh_.tokens().all_reduce(*count));
  attached_->reducer().expect({.weight =
                                   [count, work] {
                                     work->wait();
                                     return count->item<double>();
                                   },
                               .loss_scale = control_.state().multiplier});
}

/// The servers make the update, with the rate and the divisor that an optimizer here would get. A
/// gradient that is not finite is not pushed, but its clock is; in lockstep it is, and keeps the
/// servers from applying that clock.
void Trainer::push(const data::Batch& batch, const at::Tensor& totals,
                   const optim::Update& update) {
  const ps::JobConfig& job = servers_->client().job();
  const int ranks = mesh_.samples().size();
  const auto lane = static_cast<int>(servers_->batch() % job.workers);
  int64_t rows = 0;  // of this worker
  for (int rank = 0; rank < ranks; ++rank)
    rows += even_range(batch.all_rows, static_cast<int>(job.workers) * ranks, lane * ranks + rank)
                .count;
  const bool skips = !job.in_lanes() && update.skip.item<double>() != 0;
  servers_->push(
      {.weight = skips ? 0 : totals[0].item<double>(),
       .loss = skips ? 0 : totals[1].item<double>(),
       .divisor = update.divisor.item<double>(),
       .rate = update.rate.item<double>(),
       .parts = rows > 0 ? static_cast<double>(batch.all_rows) / static_cast<double>(rows) : 1});
}

/// Issues all work of a step. Its numbers are where the weights are.
Trainer::Issued Trainer::issue(int64_t step, const data::Batch& batch, double wish_to_stop) {
  expect_weight(batch);
  attached_->run(cut(step, batch));
  const parallel::Totals totals =
      attached_->finish({.values = {&wish_to_stop, 1},
                         .divide = parallel::Divide::Later,
                         .norm = true,
                         .read = on_gradients_ ? parallel::Read::Now : parallel::Read::Later,
                         .on_sums = on_sums_});
  if (on_gradients_ && totals.weight != 0) on_gradients_(totals.weight * now_.multiplier);
  const optim::Update update = control_.decide(totals.on_device);
  if (compresses() && update.skip.item<double>() != 0) attached_->reducer().undo_step();
  if (servers_) {
    push(batch, totals.on_device, update);
  } else {
    optimizer_->step(update);
    attached_->updated(optimizer_->rounds_weights() ? parallel::Weights::Rounded
                                                    : parallel::Weights::Stale);
  }
  return {.numbers = at::cat(
              {totals.on_device, control_.numbers(), update.skip.to(at::kDouble).view({1})}),
          .stop = totals.sums[0]};
}

/// Copies numbers to the host without waiting for them.
at::Tensor Trainer::read_back(const at::Tensor& numbers, std::optional<c10::Event>& came) const {
  if (numbers.is_cpu()) return numbers;
  const at::Tensor host =
      at::empty(numbers.sizes(), numbers.options().device(at::kCPU).pinned_memory(true));
  host.copy_(numbers, /*non_blocking=*/true);
  came.emplace(numbers.device().type(), c10::EventFlag::BACKEND_DEFAULT);
  came->record(c10::impl::VirtualGuardImpl(numbers.device().type()).getStream(numbers.device()));
  return host;
}

StepResult Trainer::take() {
  core::check(!started_.empty(), "Trainer::take: no step was started");
  if (is_asynchronous()) end_oldest();
  const StartedStep started = std::move(started_.front());
  started_.pop_front();
  if (started.came) started.came->synchronize();
  const auto* totals = started.numbers.data_ptr<double>();
  const double weight = totals[0], loss = totals[1], squares = totals[2];
  const auto before = std::exchange(
      now_, control_.state_of(started.numbers.narrow(0, kControl, optim::UpdateControl::kNumbers)));
  StepResult result{.weight = weight,
                    .lr = control_.rate_of(before.updates + 1),
                    .stop = started.stop,
                    .meeting = started.meeting,
                    .experts = started.experts};
  if (control_.scales()) result.loss_scale = before.scale;
  if (weight == 0) {
    weightless_.say(step_mesh().world());
    result.loss = std::numeric_limits<double>::quiet_NaN();
    return result;
  }
  result.loss = loss / weight;
  result.grad_norm = std::sqrt(squares) / (weight * before.multiplier);
  result.skipped = control_.scales() && now_.skipped > before.skipped;
  skipped_in_a_row_ = result.skipped ? skipped_in_a_row_ + 1 : 0;
  if (is_asynchronous() && config_.check.finite && !std::isfinite(loss + squares)) {
    attached_->asynchronous()->drain();  // so that all ranks are at the same operation
    report_not_finite(started, result.loss);
  }
  if (config_.check.finite && (now_.stopped || now_.scale < kLeastScale))
    report_not_finite(started, result.loss);
  return result;
}

void Trainer::report_not_finite(const StartedStep& started, double loss) const {
  const int64_t step = started.step;
  const auto bad = [](const at::Tensor& tensor) {
    return tensor.defined() && !tensor.isfinite().all().item<bool>();
  };
  // Parameters first: a bad gradient may only be computed from a bad parameter.
  std::string mine;
  const auto& all = shards();
  const auto parameter =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return bad(one.master); });
  // Are there still the gradients of that step?
  const bool kept = started_.empty() && !started.replayed && !is_asynchronous();
  const auto gradient = std::find_if(all.begin(), all.end(),
                                     [&](const auto& one) { return kept && bad(one.gradient()); });
  if (parameter != all.end())
    mine = fmt::format("parameter {}", describe(*parameter));
  else if (gradient != all.end())
    mine = fmt::format("the gradient of {}", describe(*gradient));
  // Another rank may hold the bad part. All ranks get here, because all have the same norm.
  // The gradients of a GPU are gone if the next step has begun, or the step was a replay.
  std::string first =
      kept ? "no parameter or gradient, so it arose in the loss itself"
      : is_asynchronous()
          ? "not known, because other steps were in flight"
          : "not known, because the next step has begun (run.graph=off and check.hash_every=1 make "
            "the host wait for each step)";
  const auto texts = comm::all_gather_texts(step_mesh().world(), mine);
  for (std::size_t rank = texts.size(); rank-- > 0;)
    if (!texts[rank].empty()) first = texts[rank];
  const std::string skipped =
      skipped_in_a_row_ == 0
          ? ""
          : fmt::format(", as in all steps since {}: no loss scale helps, it is {:.3g} now",
                        step - skipped_in_a_row_ + 1, now_.scale);
  const std::string from = skipped_in_a_row_ == 0 ? "the last checkpoint"
                                                  : fmt::format("a checkpoint before step {}",
                                                                step - skipped_in_a_row_ + 1);
  throw Error(fmt::format(
      "step {}: the loss is {}, the first tensor that is not finite is {}{}; {}. Lower optim.lr, "
      "or "
      "continue from {}",
      step, std::isnan(loss) ? "nan" : fmt::format("{}", loss), first, skipped,
      is_asynchronous() ? "other stages may have made this update" : "nothing was updated", from));
}

Evaluation Trainer::evaluate(const data::Dataset& dataset, int64_t batches) {
  check_all_taken("evaluate");
  const at::NoGradGuard guard;
  const comm::Communicator ranks = mesh_.samples();
  struct Training {  // back to training mode, also after a throw
    nn::ModelImpl& model;
    ~Training() { model.train(); }
  } const after{*model_};
  model_->eval();
  struct Common {  // replicas that train on their own evaluate their common weights
    explicit Common(Trainer& one) : trainer(one) {
      if (!trainer.local_) return;
      weights.emplace(*trainer.local_);
      buffers.emplace(trainer.attached_->buffers(), *trainer.replicas_);
      trainer.attached_->updated();
    }
    ~Common() {
      if (!weights) return;
      buffers.reset();
      weights.reset();
      trainer.attached_->updated();
    }
    Trainer& trainer;
    std::optional<parallel::LocalUpdates::CommonWeights> weights;
    std::optional<CommonBuffers> buffers;
  } const common(*this);
  const int64_t limit =
      batches > 0 ? std::min(dataset.size(), batches * config_.batch.global) : dataset.size();
  const Range mine = even_range(limit, ranks.size(), ranks.rank());
  // Every rank runs as many micro-batches as the first, which has most: the last may be empty.
  const int64_t most = even_range(limit, ranks.size(), 0).count;
  // Loss, weight, right choices, and whether there are any choices.
  at::Tensor totals = at::zeros({4}, at::kDouble);
  std::vector<nn::MicroBatch> micros;
  for (int64_t begin = 0; begin < most; begin += config_.batch.micro) {
    const int64_t end = std::min(mine.count, begin + config_.batch.micro);
    std::vector<at::Tensor> inputs, targets, documents;
    for (int64_t i = begin; i < std::max(end, begin + 1); ++i) {  // one, for the shape
      const int64_t index = std::min(mine.begin + i, limit - 1);
      data::Sample sample = positions_.is_open()
                                ? dataset.get(index)
                                : dataset.get_positions(index, std::nullopt, positions_);
      inputs.push_back(std::move(sample.input));
      targets.push_back(std::move(sample.target));
      if (sample.documents.defined()) documents.push_back(std::move(sample.documents));
    }
    const int64_t rows = std::max<int64_t>(0, end - begin);
    auto where = std::make_shared<nn::Where>();
    where->positions = positions_;
    if (!documents.empty())
      where->documents = at::stack(documents).slice(0, 0, rows).to(mesh_.device());
    micros.push_back({nn::Flow(at::stack(inputs).slice(0, 0, rows), std::move(where)),
                      at::stack(targets).slice(0, 0, rows)});
    if (micros.size() < attached_->evaluated_at_once() && begin + config_.batch.micro < most)
      continue;
    const parallel::LossTotals some = attached_->evaluate(micros);
    if (some.sum.defined()) totals += numbers_of(some);
    micros.clear();
  }
  mesh_.world().all_reduce(totals).wait();
  const auto* const sums = totals.data_ptr<double>();
  return {.loss = sums[0] / sums[1],
          .accuracy = sums[3] > 0 ? std::optional(sums[2] / sums[1]) : std::nullopt};
}

checkpoint::State Trainer::own_state() const {
  check_all_taken("state");
  core::check(!servers_, "Trainer::state: the servers have the state of this run");
  const bool adapts = config_.lora.rank > 0;
  checkpoint::State state =
      state_of(*attached_, *optimizer_, adapts ? WeightsOf::Adapters : WeightsOf::All);
  state.extra["update"] = control_.to_json();
  if (adapts) state.extra["lora"] = facts_of_adapters(config_);
  return state;
}

checkpoint::State Trainer::state() const {
  return local_ ? with_replicas(own_state(), *local_) : own_state();
}

void Trainer::load(format::Checkpoint& from, const checkpoint::State& own) {
  loaded_ = load_replicas(from, own, local_.get());
}

std::string Trainer::restore() {
  const core::Json& extra = loaded_.extra;
  train::restore(*attached_, *optimizer_, extra);
  int64_t updates = 0;  // of a checkpoint that does not count them
  for (const core::Json& count : extra.at("optimizer").at("steps"))
    updates = std::max(updates, count.get<int64_t>());
  control_.restore(extra.value("update", core::Json::object()), updates);
  now_ = control_.state();
  return loaded_.note;
}

checkpoint::State Trainer::weights() const {
  return weights_of(*attached_, config_.lora.rank > 0 ? WeightsOf::Base : WeightsOf::All);
}

void Trainer::begin_from_weights() {
  if (local_) local_->restart();
  attached_->updated();
}

int64_t Trainer::num_parameters() const {
  int64_t count = 0;
  for (const nn::Parameter& one : nn::parameters_of(*model_))
    count += Box{{}, one.layout.whole()}.numel();
  return count;
}

int64_t Trainer::num_trained() const {
  int64_t count = 0;
  for (const nn::Parameter& one : nn::parameters_of(*model_))
    if (one.tensor.requires_grad()) count += Box{{}, one.layout.whole()}.numel();
  return count;
}

std::string Trainer::take_news() {
  return attached_->reducer().take_news() + (local_ ? local_->take_news() : "");
}

}  // namespace trireme::train
