// How a pipeline goes through its program; the rest of it is in pipeline.cpp.
#include <torch/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/nn/batch_statistics.h"
#include "trireme/nn/recompute.h"
#include "trireme/parallel/pipeline.h"
#include "trireme/pipeline/passes.h"

namespace trireme::parallel {

namespace {

namespace ag = torch::autograd;
using pipeline::Act;
using pipeline::Action;

constexpr std::size_t kAhead = 4;  // receives that are posted before they are needed

}  // namespace

Stage& Pipeline::stage(int index) {
  return *std::find_if(stages_.begin(), stages_.end(),
                       [index](const Stage& one) { return one.index == index; });
}

/// The tag of the message that an action sends or receives. It numbers the boundary between two
/// stages, the micro-batch and the direction.
int Pipeline::tag(const Action& action) const {
  const bool forwards = action.act == Act::SendAct || action.act == Act::RecvAct;
  const bool arrives = action.act == Act::RecvAct || action.act == Act::SendGrad;
  const int boundary = action.stage - (arrives ? 1 : 0);
  return (boundary * numbered_micros_ + action.micro) * 2 + (forwards ? 0 : 1);
}

std::vector<Range> Pipeline::micro_batches(const BatchRows& rows) const {
  std::vector<Range> micros;
  for (int i = 0; i < schedule_.micros; ++i)
    micros.push_back(even_range(rows.mine, schedule_.micros, i));
  return micros;
}

/// In an asynchronous pipeline, micro-batches are numbered over several steps.
const nn::MicroBatch& Pipeline::micro_batch(int micro) const {
  return (*micros_)[static_cast<std::size_t>(micro) % micros_->size()];
}

void Pipeline::run(const std::vector<nn::MicroBatch>& micros) {
  core::check(state_ == StepState::Idle, "Pipeline: {}",
              state_ == StepState::Ran
                  ? "a step is a run and a finish; call finish() first"
                  : "a step threw; build it anew and load the last checkpoint");
  core::check(micros.size() == static_cast<std::size_t>(schedule_.micros),
              "Pipeline: {} micro-batches, but schedule '{}' is for {}", micros.size(),
              schedule_.name, schedule_.micros);
  micros_ = &micros;
  const auto& where = micros.front().inputs.where;  // the step of the run, if it is given
  step_ = where != nullptr ? where->step : step_ + 1;
  if (asynchronous_ != nullptr) {
    begin_step();
  } else {
    in_flight_ = peak_in_flight_ = 0;
    losses_ = {};
    for (const auto& part : parts_) part->completed = 0;
    run_program(schedule_.programs[static_cast<std::size_t>(pipe_.rank())]);
    transfers_.finish_sends();
    state_ = StepState::Ran;
  }
  micros_ = nullptr;
  pipe_.note(fmt::format("what follows the schedule '{}' of step {}", schedule_.name, step_));
}

/// Runs the actions of this rank in order.
void Pipeline::run_program(const pipeline::Program& program) {
  state_ = StepState::Broken;  // until the end of the program
  expected_ = 0;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const Action& action = program[i];
    const auto began = core::Trace::Clock::now();
    try {
      pipe_.note(fmt::format("{} (action {} of {} of '{}', step {})", to_text(action), i + 1,
                             program.size(), schedule_.name, step_));
      expect_ahead(program, i);
      transfers_.advance();
      if (options_.recompute != nullptr)
        options_.recompute->on = !pipeline::backward_follows(program, i);
      run(action, micro_at(program, i));
    } catch (const std::exception& error) {
      fail(error, fmt::format("{}, action {} of {} of schedule '{}'", to_text(action), i + 1,
                              program.size(), schedule_.name));
    }
    if (options_.trace)
      options_.trace->add(core::Trace::Row::Actions, to_text(action), began,
                          core::Trace::Clock::now());
  }
  state_ = StepState::Idle;
}

/// Is it the last gradient of the stage in its step?
Micro Pipeline::micro_at(const pipeline::Program& program, std::size_t at) const {
  const bool last = asynchronous_ != nullptr
                        ? (program[at].micro + 1) % schedule_.micros == 0
                        : at == last_of_[static_cast<std::size_t>(program[at].stage)];
  return last ? Micro::Last : Micro::More;
}

/// Adds the action that this rank was at to the error, and throws it. If the error arose here, it
/// also aborts the world, because the other ranks would wait for messages that never come.
void Pipeline::fail(const std::exception& error, const std::string& where) const {
  const std::string said = fmt::format("{}; this rank was at {}", error.what(), where);
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) throw TimeoutError(said);
  if (dynamic_cast<const CommError*>(&error) != nullptr) throw CommError(said);
  pipe_.abort(said);
  throw;
}

/// Posts the receives of the next actions, so that messages that arrive early need not wait.
void Pipeline::expect_ahead(const pipeline::Program& program, std::size_t at) {
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
  if (asynchronous_ != nullptr && is_compute(action.act)) use_version_of(action.micro);
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
      if (--at.part->holds == 0) at.part->attached->release();
      return;
    case Act::ReduceGrad:
      if (++at.part->completed == static_cast<int>(at.part->stages.size()))
        at.part->attached->gradients().start_rest();
      return;
    case Act::Update: return update();
  }
}

nn::Flow Pipeline::input_of(Stage& stage, int micro) {
  const nn::Flow& in = micro_batch(micro).inputs;
  if (stage.index > 0) {
    nn::Flow came = take(stage.inputs, micro);
    if (came.where != nullptr && in.where != nullptr &&
        (in.where->loss_scale.defined() || in.where->documents.defined() ||
         !in.where->row_weights.empty())) {
      nn::Where where = *came.where;  // every rank has these; they do not travel
      where.loss_scale = in.where->loss_scale;
      where.documents = in.where->documents;
      where.row_weights = in.where->row_weights;
      came.where = std::make_shared<const nn::Where>(std::move(where));
    }
    return came;
  }
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& one : in.tensors)
    tensors.push_back(one.defined() ? as_input(one, mesh_.device(), options_.precision) : one);
  return {std::move(tensors), in.where};
}

/// Runs the links of a stage. Returns the loss on the last stage; elsewhere `flow` is the output.
std::optional<nn::Loss> Pipeline::compute(const Stage& stage, int micro, nn::Flow& flow) const {
  for (nn::Segment one : stage.segments) {
    one.recompute = one.recompute && (options_.recompute == nullptr || options_.recompute->on);
    flow = one.forward(std::move(flow));
  }
  if (stage.index + 1 < schedule_.stages()) return std::nullopt;
  nn::Loss loss = chain_.loss(flow, micro_batch(micro).targets.to(mesh_.device()));
  check(loss);
  return loss;
}

void Pipeline::forward(Stage& stage, int micro) {
  nn::Flow flow = input_of(stage, micro);
  MicroInFlight kept{.inputs = flow.tensors, .roots = {}};
  const auto add_root = [&](const at::Tensor& one) {
    const bool needs = one.defined() && one.requires_grad();
    kept.roots.push_back(needs ? ag::impl::gradient_edge(one) : ag::Edge());
  };
  if (const auto loss = compute(stage, micro, flow)) {
    if (asynchronous_ != nullptr)
      kept.loss = numbers_of(*loss);
    else
      losses_.add(*loss);
    add_root(loss->sum);
    const auto& where = micro_batch(micro).inputs.where;
    kept.seeds = {seed_of(*loss, where != nullptr ? where->loss_scale : at::Tensor())};
  } else {
    for (const at::Tensor& one : flow.tensors) add_root(one);
    flow.remake = nullptr;  // it ends with the graph of this stage
    stage.outputs.emplace(micro, std::move(flow));
    hand_on(stage, micro);
  }
  stage.part->attached->end_forward();
  if (++stage.forwards % schedule_.micros == 0)
    for (const auto& layer : stage.layers)
      for (const auto& one : nn::batch_statistics_of(*layer)) one->end_mini_batch();
  stage.in_flight.emplace(micro, std::move(kept));
  peak_in_flight_ = std::max(peak_in_flight_, ++in_flight_);
}

/// Passes an output to the next stage, or a gradient to the previous one, if that stage is on this
/// rank and needs no transfer.
void Pipeline::hand_on(Stage& from, int micro) {
  const bool forwards = from.outputs.contains(micro);
  const int to = from.index + (forwards ? 1 : -1);
  if (to < 0 || schedule_.rank_of(to) != pipe_.rank()) return;
  if (!forwards) {
    stage(to).gradients_in.emplace(micro, take(from.gradients_out, micro));
    return;
  }
  stage(to).inputs.emplace(micro, take(from.outputs, micro).detached());
}

void Pipeline::backward(Stage& stage, const Action& action, Micro micro) {
  MicroInFlight& kept = stage.in_flight.at(action.micro);
  auto given = stage.index + 1 == schedule_.stages() ? std::move(kept.seeds)
                                                     : take(stage.gradients_in, action.micro);
  if (asynchronous_ != nullptr) take_loss(kept, given);
  core::check(given.size() == kept.roots.size(), "stage {}: {} gradients came back for {} outputs",
              stage.index, given.size(), kept.roots.size());
  ag::edge_list roots;
  ag::variable_list seeds;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!given[i].defined() || !kept.roots[i].is_valid()) continue;
    roots.push_back(std::move(kept.roots[i]));
    seeds.push_back(given[i]);
  }
  kept.roots.clear();
  const auto body = [&] {
    if (roots.empty()) return;  // no output needs a gradient
    ag::Engine::get_default_engine().execute(roots, seeds, /*keep_graph=*/false,
                                             /*create_graph=*/false, /*accumulate_grad=*/true, {});
    roots.clear();
  };
  if (action.act == Act::Backward)
    stage.part->attached->collect(micro, body);
  else
    kept.jobs = stage.part->attached->defer(*stage.part->queue, body);
  if (stage.index > 0) {
    std::vector<at::Tensor> back;
    for (at::Tensor& one : kept.inputs) back.push_back(one.defined() ? one.grad() : one);
    if (asynchronous_ != nullptr) back.push_back(std::move(kept.loss));
    stage.gradients_out.emplace(action.micro, std::move(back));
    hand_on(stage, action.micro);
  }
  kept.inputs.clear();
  if (action.act != Act::Backward) return;
  stage.in_flight.erase(action.micro);
  --in_flight_;
}

void Pipeline::backward_weights(Stage& stage, int micro, Micro last) {
  MicroInFlight kept = take(stage.in_flight, micro);
  stage.part->attached->collect(last, [&] {
    for (nn::WeightJob& job : kept.jobs) {
      nn::deliver(job);
      job = {};  // frees the tensors that it holds
    }
  });
  --in_flight_;
}

}  // namespace trireme::parallel
