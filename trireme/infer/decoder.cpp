#include "trireme/infer/decoder.h"

#include "trireme/core/error.h"
#include "trireme/nn/layers.h"

namespace trireme::infer {

namespace {

std::shared_ptr<nn::ModelImpl> checked(std::shared_ptr<nn::ModelImpl> model) {
  bool attends = false;
  for (const auto& module : model->modules())
    attends = attends || module->as<nn::CausalAttentionImpl>() != nullptr;
  if (!attends || model->chain().links.empty())
    throw ConfigError("this model cannot write a text: it does not attend to what came before");
  return model;
}

}  // namespace

Decoder::Decoder(std::shared_ptr<nn::ModelImpl> model)
    : model_(checked(std::move(model))), chain_(model_->chain()), caches_(model_) {}

at::Tensor Decoder::feed(const at::Tensor& tokens) {
  const at::NoGradGuard guard;
  core::check(tokens.dim() == 2 && tokens.size(1) > 0,
              "Decoder::feed: tokens are [rows, positions], at least one");
  nn::Flow flow(tokens, std::make_shared<const nn::Where>(nn::Where{.seq_begin = position_}));
  for (const nn::Link& link : chain_.links) flow = link.forward(std::move(flow));
  position_ += tokens.size(1);
  const at::Tensor last = flow.x().narrow(1, tokens.size(1) - 1, 1).contiguous();
  return chain_.head.forward(flow.with(last)).x().squeeze(1);
}

}  // namespace trireme::infer
