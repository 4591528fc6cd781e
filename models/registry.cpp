#include "models/registry.h"

#include "models/gpt.h"
#include "models/llama.h"
#include "models/mlp.h"
#include "models/resnet.h"
#include "models/vit.h"
#include "trireme/core/error.h"
#include "trireme/nn/adapters.h"
#include "trireme/nn/bind.h"
#include "trireme/nn/parameters.h"

namespace trireme::models {

namespace {

std::shared_ptr<nn::ModelImpl> make_resnet(const config::Model& wanted, const Mesh& mesh) {
  return std::make_shared<ResNetImpl>(
      ResNetOptions{.depth = wanted.depth,
                    .classes = wanted.classes,
                    .image = wanted.image,
                    .channels = wanted.channels,
                    .stem = wanted.stem == config::Stem::Cifar ? ResNetOptions::Stem::Cifar
                                                               : ResNetOptions::Stem::ImageNet,
                    .format = wanted.pixels == config::Pixels::ChannelsLast
                                  ? at::MemoryFormat::ChannelsLast
                                  : at::MemoryFormat::Contiguous,
                    .all_ranks = wanted.batch_norm == config::BatchNormKind::Sync},
      mesh);
}

std::shared_ptr<nn::ModelImpl> make_vit(const config::Config& config, const Mesh& mesh) {
  const config::Model& wanted = config.model;
  return std::make_shared<VitImpl>(
      VitOptions{.layers = wanted.layers,
                 .hidden = wanted.hidden,
                 .heads = wanted.heads,
                 .kv_heads = wanted.kv_heads,
                 .ffn = wanted.ffn,
                 .classes = wanted.classes,
                 .image = wanted.image,
                 .channels = wanted.channels,
                 .patch = wanted.patch,
                 .dropout = wanted.dropout,
                 .attention_dropout = wanted.attention_dropout,
                 .sequence = config.tensor.sequence ? nn::Sequence::Cut : nn::Sequence::Whole},
      mesh);
}

nn::ContextKind context_kind(config::ContextKind kind) {
  switch (kind) {
    case config::ContextKind::Ring: break;
    case config::ContextKind::Ulysses: return nn::ContextKind::Ulysses;
    case config::ContextKind::Gather: return nn::ContextKind::Gather;
  }
  return nn::ContextKind::Ring;
}

nn::RotaryScaling scaling_of(config::RopeScaling scaling) {
  switch (scaling) {
    case config::RopeScaling::None: return nn::RotaryScaling::None;
    case config::RopeScaling::Linear: return nn::RotaryScaling::Linear;
    case config::RopeScaling::Dynamic: return nn::RotaryScaling::Dynamic;
    case config::RopeScaling::Yarn: return nn::RotaryScaling::Yarn;
    case config::RopeScaling::Llama3: return nn::RotaryScaling::Llama3;
  }
  return nn::RotaryScaling::None;
}

nn::MoeImpl::Options mixture_of(const config::Config& config) {
  const config::Model& wanted = config.model;
  using Kind = config::RouterKind;
  const Kind kind = wanted.router;
  const bool biased = kind == Kind::SigmoidBias;
  return {
      .router = {.experts = wanted.experts,
                 .top_k = wanted.top_k,
                 .score = biased ? nn::RouterImpl::Score::Sigmoid : nn::RouterImpl::Score::Softmax,
                 .normalised = biased || kind == Kind::Normalised,
                 .groups = wanted.router_groups,
                 .top_groups = wanted.router_top_groups,
                 .biased = biased,
                 .bias_rate = wanted.bias_rate,
                 .balance = biased ? 0 : wanted.balance,
                 .z_loss = wanted.z_loss,
                 .capacity = wanted.capacity},
      .experts = {.ffn = wanted.expert_ffn > 0 ? wanted.expert_ffn
                         : wanted.ffn > 0      ? wanted.ffn
                                               : 4 * wanted.hidden,
                  .gated = wanted.expert_gated,
                  .dropout = wanted.expert_dropout,
                  .overlaps = config.comm.overlap_experts},
      .shared = wanted.shared_experts};
}

LlamaOptions llama_options(const config::Config& config) {
  const config::Model& wanted = config.model;
  return {.layers = wanted.layers,
          .hidden = wanted.hidden,
          .heads = wanted.heads,
          .kv_heads = wanted.kv_heads,
          .head_dim = wanted.head_dim,
          .ffn = wanted.ffn,
          .seq = wanted.seq,
          .vocab = wanted.vocab,
          .norm_eps = wanted.norm_eps,
          .qkv_bias = wanted.qkv_bias,
          .rotary = {.theta = wanted.rope_theta,
                     .pairs = wanted.rope_pairs == config::RopePairs::Halves
                                  ? nn::RotaryPairs::Halves
                                  : nn::RotaryPairs::Neighbours,
                     .scaling = scaling_of(wanted.rope_scaling),
                     .factor = wanted.rope_factor,
                     .low = wanted.rope_low,
                     .high = wanted.rope_high,
                     .trained_on = wanted.rope_seq},
          .dropout = wanted.dropout,
          .attention_dropout = wanted.attention_dropout,
          .tie = wanted.tie,
          .sequence = config.tensor.sequence ? nn::Sequence::Cut : nn::Sequence::Whole,
          .context = context_kind(config.context.kind),
          .moe = wanted.has_experts() ? std::optional(mixture_of(config)) : std::nullopt};
}

GptOptions gpt_options(const config::Config& config) {
  const config::Model& wanted = config.model;
  GptOptions options{.layers = wanted.layers,
                     .hidden = wanted.hidden,
                     .heads = wanted.heads,
                     .kv_heads = wanted.kv_heads,
                     .ffn = wanted.ffn,
                     .seq = wanted.seq,
                     .vocab = wanted.vocab,
                     .dropout = wanted.dropout,
                     .attention_dropout = wanted.attention_dropout,
                     .tie = wanted.tie,
                     .sequence = config.tensor.sequence ? nn::Sequence::Cut : nn::Sequence::Whole,
                     .context = context_kind(config.context.kind)};
  if (wanted.has_experts()) options.moe = mixture_of(config);
  return options;
}

std::shared_ptr<nn::ModelImpl> make(const config::Config& config, const Mesh& mesh) {
  const config::Model& wanted = config.model;
  if (wanted.kind == "resnet") return make_resnet(wanted, mesh);
  if (wanted.kind == "vit") return make_vit(config, mesh);
  if (wanted.is_llama()) return std::make_shared<LlamaImpl>(llama_options(config), mesh);
  if (wanted.kind == "gpt" || wanted.kind == "moe-gpt")
    return std::make_shared<GptImpl>(gpt_options(config), mesh);
  if (wanted.kind == "mlp")
    return std::make_shared<MlpImpl>(MlpOptions{.layers = wanted.layers,
                                                .hidden = wanted.hidden,
                                                .seq = wanted.seq,
                                                .vocab = wanted.vocab,
                                                .dropout = wanted.dropout},
                                     mesh);
  throw ConfigError(
      fmt::format("model.kind = \"{}\" is not built yet; there are gpt, llama, mlp, moe-gpt, "
                  "moe-llama, resnet and vit",
                  wanted.kind));
}

}  // namespace

namespace {

void add_adapters(const config::Lora& keys, nn::ModelImpl& model) {
  if (keys.rank == 0) return;
  try {
    nn::add_adapters(model, {.rank = keys.rank, .alpha = keys.alpha, .targets = keys.targets});
  } catch (const MisuseError& error) {
    throw ConfigError(fmt::format("lora.targets: {}", error.what()));
  }
}

}  // namespace

std::shared_ptr<nn::ModelImpl> make_model(const config::Config& config, const Mesh& mesh) {
  try {
    auto model = make(config, mesh);
    add_adapters(config.lora, *model);
    return model;
  } catch (const MisuseError& error) {
    throw ConfigError(fmt::format("model.kind = \"{}\" on {}: {}", config.model.kind,
                                  to_string(mesh.degrees()), error.what()));
  }
}

std::shared_ptr<nn::ModelImpl> make_whole(const config::Config& config, const Degrees& degrees) {
  const nn::Deferred deferred;  // only shapes are needed
  auto model = make_model(config, mesh_of_one());
  for (const nn::Parameter& one : nn::parameters_of(*model)) {
    try {
      nn::check_experts(one.layout, degrees.expert);
      one.layout.check_fits(degrees);
    } catch (const MisuseError& error) {
      throw ConfigError(fmt::format("model.kind = \"{}\" on {}: '{}': {}", config.model.kind,
                                    to_string(degrees), one.name, error.what()));
    }
  }
  return model;
}

}  // namespace trireme::models
