// How a pipeline evaluates: forwards only, in an order of their own.
#include "trireme/parallel/pipeline.h"
#include "trireme/pipeline/passes.h"

namespace trireme::parallel {

namespace {

using pipeline::Action;

constexpr int kEvaluationTag = 1 << 30;  // above the tags of any schedule

}  // namespace

LossTotals Pipeline::evaluate(const std::vector<nn::MicroBatch>& micros) {
  const at::NoGradGuard guard;
  core::check(state_ == StepState::Idle && in_flight_ == 0,
              "Pipeline: evaluate between steps, after finish() or drain()");
  state_ = StepState::Broken;
  micros_ = &micros;
  LossTotals sums;
  const auto order = pipeline::forwards_only(schedule_, static_cast<int>(micros.size()));
  for (const Action& action : order.programs[static_cast<std::size_t>(pipe_.rank())]) {
    const std::string what =
        fmt::format("stage {} of micro-batch {} (evaluation)", action.stage, action.micro);
    const auto began = core::Trace::Clock::now();
    try {
      pipe_.note(what);
      evaluate(stage(action.stage), action.micro, sums);
      if (options_.trace)
        options_.trace->add(core::Trace::Row::Actions, what, began, core::Trace::Clock::now());
    } catch (const std::exception& error) {
      fail(error, what);
    }
  }
  transfers_.finish_sends();
  pipe_.note("");
  micros_ = nullptr;
  state_ = StepState::Idle;
  return reports_loss(mesh_.coord()) ? sums : LossTotals{};
}

/// Sends are not waited for. The first stage bounds the number of micro-batches in flight: it
/// begins one only when the last stage has reported that an earlier one is complete.
void Pipeline::evaluate(Stage& at, int micro, LossTotals& sums) {
  transfers_.advance();
  const int last = schedule_.stages() - 1, first_rank = schedule_.rank_of(0),
            last_rank = schedule_.rank_of(last), through_tag = kEvaluationTag + last + 1;
  const int ahead = pipeline::most_in_flight(schedule_);
  if (at.index == 0 && micro >= ahead && first_rank != last_rank)
    transfers_.take(last_rank, through_tag);
  const int before = at.index > 0 ? schedule_.rank_of(at.index - 1) : pipe_.rank();
  if (before != pipe_.rank())
    at.inputs.emplace(micro, transfers_.take(before, kEvaluationTag + at.index));
  nn::Flow flow = input_of(at, micro);
  if (const auto loss = compute(at, micro, flow)) {
    sums.add(*loss);
    if (first_rank != last_rank && micro + ahead < static_cast<int>(micros_->size()))
      transfers_.send(nn::Flow(std::vector<at::Tensor>{}, nullptr), first_rank, through_tag);
    return;
  }
  at.outputs.emplace(micro, std::move(flow));
  const int next = schedule_.rank_of(at.index + 1);
  if (next == pipe_.rank())
    hand_on(at, micro);
  else
    transfers_.send(take(at.outputs, micro), next, kEvaluationTag + at.index + 1);
}

}  // namespace trireme::parallel
