#include "trireme/infer/generate.h"

#include <algorithm>
#include <limits>

#include "trireme/core/error.h"

namespace trireme::infer {

namespace {

/// Draws the token after `position`s that were fed.
int64_t draw(Sampler& sampler, const at::Tensor& logits, int64_t vocab, int64_t position) {
  const at::Tensor wide = logits.to(at::kCPU, at::kDouble).contiguous().view({-1});
  const auto count =
      static_cast<std::size_t>(vocab > 0 ? std::min(vocab, wide.numel()) : wide.numel());
  return sampler.pick({wide.const_data_ptr<double>(), count}, position);
}

}  // namespace

End generate(Decoder& decoder, const comm::Communicator& group, const std::vector<int64_t>& prompt,
             const GenerateOptions& options, const std::function<void(int64_t token)>& hand_on) {
  core::check(!prompt.empty(), "generate: a text needs at least one token to begin with");
  const auto limit = options.seq > 0 ? options.seq : std::numeric_limits<int64_t>::max();
  if (decoder.position() + static_cast<int64_t>(prompt.size()) > limit)
    throw ConfigError(fmt::format("the prompt has {} tokens, and the model has {} positions",
                                  prompt.size(), limit));
  const at::NoGradGuard guard;
  if (options.seq > 0 && group.size() == 1) decoder.repeat_steps(options.seq);
  Sampler sampler(options.sampling);
  at::Tensor next = at::tensor(prompt, at::kLong).view({1, -1});
  for (int64_t i = 0; i < options.tokens; ++i) {
    if (decoder.position() + next.size(1) > limit) return End::Positions;
    const at::Tensor logits = decoder.feed(next);
    next = at::empty({1, 1}, at::kLong);
    if (group.rank() == 0) next.fill_(draw(sampler, logits, options.vocab, decoder.position()));
    if (group.size() > 1) group.broadcast(next, 0).wait();
    const auto token = next.item<int64_t>();
    if (std::ranges::find(options.last, token) != options.last.end()) return End::LastToken;
    hand_on(token);
  }
  return End::Tokens;
}

}  // namespace trireme::infer
