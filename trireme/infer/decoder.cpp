#include "trireme/infer/decoder.h"

#include "trireme/core/error.h"
#include "trireme/nn/layers.h"
#include "trireme/nn/router.h"

namespace trireme::infer {

namespace {

std::shared_ptr<nn::ModelImpl> checked(std::shared_ptr<nn::ModelImpl> model) {
  bool attends = false;
  for (const auto& module : model->modules())
    if (const auto* one = module->as<nn::CausalAttentionImpl>()) attends |= one->sees_past_only();
  if (!attends || model->chain().links.empty())
    throw ConfigError("this model cannot write a text: it does not attend to what came before");
  return model;
}

}  // namespace

Decoder::Decoder(std::shared_ptr<nn::ModelImpl> model)
    : model_(checked(std::move(model))),
      device_(model_->parameters().at(0).device()),
      chain_(model_->chain()),
      caches_(model_) {}

at::Tensor Decoder::logits_of(const at::Tensor& tokens, nn::Where where) {
  nn::Flow flow(tokens, std::make_shared<const nn::Where>(std::move(where)));
  for (const nn::Link& link : chain_.links) flow = link.forward(std::move(flow));
  const at::Tensor last = flow.x().narrow(1, tokens.size(1) - 1, 1).contiguous();
  return chain_.head.forward(flow.with(last)).x().squeeze(1);
}

at::Tensor Decoder::feed(const at::Tensor& tokens) {
  const at::NoGradGuard guard;
  core::check(tokens.dim() == 2 && tokens.size(1) > 0,
              "Decoder::feed: tokens are [rows, positions], at least one");
  const at::Tensor logits =
      repeats(tokens) ? repeat(tokens)
                      : logits_of(tokens.to(device_), {.positions = Positions::from(position_)});
  position_ += tokens.size(1);
  return logits;
}

/// Experts read on the host how many tokens each gets, which no recording can.
void Decoder::repeat_steps(int64_t positions) {
  if (!nn::routers_of(*model_).empty()) return;
  if (device_.is_cuda() && cuda::Graph::available() && caches_.may_move())
    repeats_before_ = positions;
}

bool Decoder::repeats(const at::Tensor& tokens) const {
  return position_ > 0 && position_ < repeats_before_ && tokens.size(1) == 1 &&
         tokens.size(0) == caches_.rows();
}

/// One step, recorded for all positions that the caches have room for:
///
///   first time   runs as it is, which makes tables and prepares libraries
///   second time  is recorded, and repeated
///   afterwards   is repeated
///
/// What changes from step to step is in tensors that stay where they are.
at::Tensor Decoder::repeat(const at::Tensor& token) {
  // A recording serves as many positions as there is room for, so there should be room for many.
  constexpr int64_t kAhead = 256;
  const bool first = !step_ || step_->token.size(0) != token.size(0) ||
                     step_->moves != caches_.moves() || position_ >= caches_.capacity();
  if (first) {
    step_.reset();  // gives its memory back
    if (caches_.capacity() < position_ + kAhead / 2) caches_.reserve(position_ + kAhead);
    step_ = Step{.token = at::empty({token.size(0), 1}, at::device(device_).dtype(at::kLong)),
                 .position = at::empty({1}, at::device(device_).dtype(at::kLong)),
                 .moves = caches_.moves()};
  }
  step_->token.copy_(token);
  step_->position.fill_(position_);
  const nn::Where where{.positions = Positions::from(position_), .moving = step_->position};
  if (first) {
    step_->logits = logits_of(step_->token, where);
  } else {
    if (!step_->graph) {
      auto graph = std::make_unique<cuda::Graph>();
      graph->capture(device_, [&] { step_->logits = logits_of(step_->token, where); });
      step_->graph = std::move(graph);
    }
    step_->graph->replay();
  }
  caches_.grown_to(position_ + 1);
  return step_->logits.clone();  // the next repetition overwrites them
}

}  // namespace trireme::infer
