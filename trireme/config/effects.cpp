#include "trireme/config/effects.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/config/keys.h"
#include "trireme/config/optimizer.h"

namespace trireme::config {

namespace {

/// A key that has no effect unless another one has a certain value.
struct Switch {
  std::string_view key;  ///< or a section
  std::string_view by;   ///< the key that it depends on
  bool (*is_on)(const Config& config);
  std::string_view remedy;  ///< a setting with which it has an effect
};

bool any_source(const Config& config, bool (*is_one)(const DataSource&)) {
  return std::ranges::any_of(config.data.sources(), is_one);
}
bool reads_files(const Config& config) {
  return any_source(config, [](const DataSource& one) { return one.kind != DataKind::Markov; });
}
bool has_markov(const Config& config) {
  return any_source(config, [](const DataSource& one) { return one.kind == DataKind::Markov; });
}
bool trains_on_images(const Config& config) {
  return any_source(config, [](const DataSource& one) { return has_images(one.kind); });
}
bool reads(const Config& config, DataKind kind) {
  return config.data.kind == kind ||
         std::ranges::find(config.data.blend, kind, &DataSource::kind) != config.data.blend.end();
}
bool reads_conversations(const Config& config) {
  return reads(config, DataKind::JsonLines);
}
bool reads_text(const Config& config) {
  return reads(config, DataKind::Text) || reads_conversations(config);
}
bool evaluates(const Config& config) {
  return config.eval.every > 0;
}
bool is_adamw(const Config& config) {
  return updating_optimizer(config) == ServerOptimizer::AdamW;
}
bool is_sgd(const Config& config) {
  return updating_optimizer(config) == ServerOptimizer::Sgd;
}
bool has_epsilon(const Config& config) {
  return !is_sgd(config);
}
bool has_attention(const Config& config) {
  return config.model.has_attention();
}
bool has_adapters(const Config& config) {
  return config.lora.rank > 0;
}
bool has_tokens(const Config& config) {
  return !config.model.has_images();
}
bool has_images(const Config& config) {
  return config.model.has_images();
}
bool is_resnet(const Config& config) {
  return config.model.kind == "resnet";
}
bool has_width(const Config& config) {
  return !is_resnet(config);
}
bool is_llama(const Config& config) {
  return config.model.is_llama();
}
bool has_experts(const Config& config) {
  return config.model.has_experts();
}
bool has_biases(const Config& config) {
  return config.model.router == RouterKind::SigmoidBias;
}
bool has_groups(const Config& config) {
  return config.model.router == RouterKind::Grouped || has_biases(config);
}
bool scales_positions(const Config& config) {
  return config.model.rope_scaling != RopeScaling::None;
}
bool is_llama3(const Config& config) {
  return config.model.rope_scaling == RopeScaling::Llama3;
}
bool is_pipeline(const Config& config) {
  return config.mesh.pipe > 1;
}
bool is_pipedream(const Config& config) {
  return config.pipeline.schedule == "pipedream";
}
bool is_sharded(const Config& config) {
  return config.mesh.shard != 1;
}  // 0: what is left of the world

/// auto and nccl: the ranks find out when they meet, and warn.
bool may_use_tcp(const Config& config) {
  return config.comm.backend != Backend::Shm && config.comm.backend != Backend::Local;
}
bool is_float16(const Config& config) {
  return config.precision.compute == Dtype::Float16;
}
bool has_16_bits(const Config& config) {
  return config.precision.compute == Dtype::BFloat16 || is_float16(config);
}

bool is_local(const Config& config) {
  return config.sync.is_local();
}
bool on_servers(const Config& config) {
  return config.sync.on_servers();
}
bool not_on_servers(const Config& config) {
  return !config.sync.on_servers();
}
bool is_stale(const Config& config) {
  return config.sync.kind == SyncKind::Stale;
}
/// Are pushes applied as they come, and not clock by clock?
bool is_delayed(const Config& config) {
  return on_servers(config) && !(is_stale(config) && config.sync.staleness == 0);
}
bool is_diloco(const Config& config) {
  return config.sync.kind == SyncKind::DiLoCo;
}
bool has_outer_momentum(const Config& config) {
  return config.sync.kind == SyncKind::Bmuf || config.sync.kind == SyncKind::SlowMo ||
         is_diloco(config);
}
bool compresses(const Config& config) {
  return config.compress.kind != Compression::None;
}
bool sends_some(const Config& config) {
  return config.compress.kind == Compression::TopK || config.compress.kind == Compression::RandomK;
}
bool has_32_bits(const Config& config) {
  return !has_16_bits(config);
}

constexpr Switch kSwitches[] = {
    {"data.path", "data.kind", reads_files, "data.kind=tokens"},
    {"data.valid", "data.kind", reads_files, "data.kind=tokens"},
    {"data.tokenizer", "data.kind",
     [](const Config& c) {
       return reads_text(c) || (c.data.documents && reads(c, DataKind::Tokens));
     },
     "data.kind=text"},
    {"data.eod", "data.documents", [](const Config& c) { return c.data.documents; },
     "data.documents=true"},
    {"data.chat", "data.kind", reads_conversations, "data.kind=jsonl"},
    {"data.valid", "eval.every", evaluates, "eval.every=100"},
    {"data.path", "data.kind", [](const Config& c) { return c.data.blend.empty(); },
     "data.kind=tokens"},
    {"data.samples", "data.kind", has_markov, "data.kind=markov"},
    {"data.classes", "data.kind", has_markov, "data.kind=markov"},
    {"data.augment", "data.kind", trains_on_images, "data.kind=images"},
    {"model.heads", "model.kind", has_attention, "model.kind=gpt"},
    {"model.kv_heads", "model.kind", has_attention, "model.kind=gpt"},
    {"model.ffn", "model.kind", has_attention, "model.kind=gpt"},
    {"model.attention_dropout", "model.kind", has_attention, "model.kind=gpt"},
    {"model.tie", "model.kind", [](const Config& c) { return has_attention(c) && has_tokens(c); },
     "model.kind=gpt"},
    {"model.seq", "model.kind", has_tokens, "model.kind=gpt"},
    {"model.vocab", "model.kind", has_tokens, "model.kind=gpt"},
    {"model.layers", "model.kind", has_width, "model.kind=vit"},
    {"model.hidden", "model.kind", has_width, "model.kind=vit"},
    {"model.dropout", "model.kind", has_width, "model.kind=vit"},
    {"model.classes", "model.kind", has_images, "model.kind=resnet"},
    {"model.image", "model.kind", has_images, "model.kind=resnet"},
    {"model.channels", "model.kind", has_images, "model.kind=resnet"},
    {"model.depth", "model.kind", is_resnet, "model.kind=resnet"},
    {"model.stem", "model.kind", is_resnet, "model.kind=resnet"},
    {"model.pixels", "model.kind", is_resnet, "model.kind=resnet"},
    {"model.batch_norm", "model.kind", is_resnet, "model.kind=resnet"},
    {"model.patch", "model.kind", [](const Config& c) { return c.model.kind == "vit"; },
     "model.kind=vit"},
    {"model.head_dim", "model.kind", is_llama, "model.kind=llama"},
    {"model.norm_eps", "model.kind", is_llama, "model.kind=llama"},
    {"model.qkv_bias", "model.kind", is_llama, "model.kind=llama"},
    {"model.rope_theta", "model.kind", is_llama, "model.kind=llama"},
    {"model.rope_pairs", "model.kind", is_llama, "model.kind=llama"},
    {"model.rope_scaling", "model.kind", is_llama, "model.kind=llama"},
    {"model.rope_factor", "model.rope_scaling", scales_positions, "model.rope_scaling=linear"},
    {"model.rope_seq", "model.rope_scaling", scales_positions, "model.rope_scaling=dynamic"},
    {"model.rope_low", "model.rope_scaling", is_llama3, "model.rope_scaling=llama3"},
    {"model.rope_high", "model.rope_scaling", is_llama3, "model.rope_scaling=llama3"},
    {"model.experts", "model.kind", has_experts, "model.kind=moe-gpt"},
    {"model.top_k", "model.kind", has_experts, "model.kind=moe-gpt"},
    {"model.capacity", "model.kind", has_experts, "model.kind=moe-gpt"},
    {"model.balance", "model.kind", has_experts, "model.kind=moe-gpt"},
    {"model.router", "model.kind", has_experts, "model.kind=moe-gpt"},
    {"model.z_loss", "model.kind", has_experts, "model.kind=moe-gpt"},
    {"model.bias_rate", "model.kind", has_experts, "model.kind=moe-gpt"},
    {"model.router_groups", "model.kind", has_experts, "model.kind=moe-gpt"},
    {"model.router_top_groups", "model.kind", has_experts, "model.kind=moe-gpt"},
    {"model.shared_experts", "model.kind", has_experts, "model.kind=moe-gpt"},
    {"model.expert_ffn", "model.kind", has_experts, "model.kind=moe-gpt"},
    {"model.expert_gated", "model.kind", [](const Config& c) { return c.model.kind == "moe-gpt"; },
     "model.kind=moe-gpt"},
    {"model.expert_dropout", "model.kind", has_experts, "model.kind=moe-gpt"},
    {"model.balance", "model.router", [](const Config& c) { return !has_biases(c); },
     "model.router=softmax"},
    {"model.bias_rate", "model.router", has_biases, "model.router=sigmoid-bias"},
    {"model.router_groups", "model.router", has_groups, "model.router=grouped"},
    {"model.router_top_groups", "model.router", has_groups, "model.router=grouped"},
    {"memory.recompute", "model.kind",
     [](const Config& c) {
       const Recompute what = c.memory.recompute;
       return (what != Recompute::Selective && what != Recompute::Cheap) || has_attention(c);
     },
     "memory.recompute=block"},
    {"memory.recompute", "mesh.pipe",
     [](const Config& c) { return c.memory.recompute != Recompute::ExceptLast || is_pipeline(c); },
     "mesh.pipe=2"},
    {"lora.alpha", "lora.rank", has_adapters, "lora.rank=8"},
    {"lora.targets", "lora.rank", has_adapters, "lora.rank=8"},
    {"optim.betas", "optim.kind", is_adamw, "optim.kind=adamw"},
    {"optim.eps", "optim.kind", has_epsilon, "optim.kind=adamw"},
    {"optim.momentum", "optim.kind", is_sgd, "optim.kind=sgd"},
    {"optim.final", "optim.schedule",
     [](const Config& c) { return c.optim.schedule != RateSchedule::Constant; },
     "optim.schedule=cosine"},
    {"context", "mesh.context", [](const Config& c) { return c.mesh.context > 1; },
     "mesh.context=2"},
    {"tensor", "mesh.tensor", [](const Config& c) { return c.mesh.tensor > 1; }, "mesh.tensor=2"},
    {"pipeline", "mesh.pipe", is_pipeline, "mesh.pipe=2"},
    {"pipeline.keep_gathered", "mesh.shard", is_sharded, "mesh.shard=2"},
    {"pipeline.vertical_sync", "pipeline.schedule", is_pipedream, "pipeline.schedule=pipedream"},
    {"pipeline.lr_by_delay", "pipeline.schedule", is_pipedream, "pipeline.schedule=pipedream"},
    {"memory.shard", "mesh.shard", is_sharded, "mesh.shard=2"},
    {"precision.master", "precision.compute", has_16_bits, "precision.compute=bfloat16"},
    {"precision.keep", "precision.compute", has_16_bits, "precision.compute=bfloat16"},
    {"precision.loss_scale", "precision.compute", is_float16, "precision.compute=float16"},
    {"precision.growth", "precision.compute", is_float16, "precision.compute=float16"},
    {"sync.every", "sync.kind", is_local, "sync.kind=average"},
    {"sync.seconds", "sync.kind", is_local, "sync.kind=average"},
    {"sync.after", "sync.kind", [](const Config& c) { return c.sync.kind == SyncKind::PostLocal; },
     "sync.kind=post-local"},
    {"sync.momentum", "sync.kind", has_outer_momentum, "sync.kind=diloco"},
    {"sync.time_constant", "sync.kind",
     [](const Config& c) { return c.sync.kind == SyncKind::Bmuf; }, "sync.kind=bmuf"},
    {"sync.lr", "sync.kind", has_outer_momentum, "sync.kind=diloco"},
    {"sync.nesterov", "sync.kind",
     [](const Config& c) { return c.sync.kind == SyncKind::Bmuf || is_diloco(c); },
     "sync.kind=diloco"},
    {"sync.fragments", "sync.kind", is_diloco, "sync.kind=diloco"},
    {"sync.delay", "sync.kind", is_diloco, "sync.kind=diloco"},
    {"sync.momentum", "sync.time_constant",
     [](const Config& c) { return c.sync.time_constant == 0; }, "sync.time_constant=0"},
    {"sync.keep_own", "sync.kind", is_diloco, "sync.kind=diloco"},
    {"sync.keep_own", "sync.delay", [](const Config& c) { return c.sync.delay > 0; },
     "sync.delay=1"},
    {"sync.inner_group", "sync.kind", is_local, "sync.kind=average"},
    {"sync.staleness", "sync.kind", is_stale, "sync.kind=stale"},
    {"sync.servers", "sync.kind", on_servers, "sync.kind=stale"},
    {"sync.copies", "sync.kind", on_servers, "sync.kind=stale"},
    {"sync.server_memory_mib", "sync.kind", on_servers, "sync.kind=stale"},
    {"sync.manager", "sync.kind", on_servers, "sync.kind=stale"},
    {"sync.optimizer", "sync.kind", on_servers, "sync.kind=stale"},
    {"sync.lr_by_staleness", "sync.kind", on_servers, "sync.kind=free"},
    {"sync.lr_by_staleness", "sync.staleness", is_delayed, "sync.staleness=1"},
    {"sync.backup", "sync.kind", on_servers, "sync.kind=free"},
    {"sync.backup", "sync.staleness", is_delayed, "sync.staleness=1"},
    {"check.hash_every", "sync.kind", not_on_servers, "sync.kind=lockstep"},
    {"log.trace", "sync.kind", not_on_servers, "sync.kind=lockstep"},
    {"compress.kind", "mesh.replica",
     [](const Config& c) {
       return c.mesh.replica != 1 || c.mesh.shard != 1 || c.mesh.context != 1 ||
              c.sync.on_servers();
     },
     "mesh.replica=2"},
    {"compress.ratio", "compress.kind", sends_some, "compress.kind=topk"},
    {"compress.rank", "compress.kind",
     [](const Config& c) { return c.compress.kind == Compression::PowerSgd; },
     "compress.kind=powersgd"},
    {"compress.min_saving", "compress.kind",
     [](const Config& c) { return c.compress.kind == Compression::PowerSgd; },
     "compress.kind=powersgd"},
    {"compress.feedback", "compress.kind", compresses, "compress.kind=topk"},
    {"compress.warmup", "compress.kind", compresses, "compress.kind=topk"},
    {"compress.keep", "compress.kind", compresses, "compress.kind=topk"},
    {"compress.transfers", "mesh.pipe", is_pipeline, "mesh.pipe=2"},
    {"compress.transfers", "precision.compute", has_32_bits, "precision.compute=float32"},
    {"compress.gathers", "mesh.shard", is_sharded, "mesh.shard=2"},
    {"compress.gathers", "precision.compute", has_32_bits, "precision.compute=float32"},
    {"comm.overlap_experts", "mesh.expert", [](const Config& c) { return c.mesh.expert > 1; },
     "mesh.expert=2"},
    {"comm.rate_mbit", "comm.backend", may_use_tcp, "comm.backend=tcp"},
};

}  // namespace

std::optional<std::string> why_no_effect(std::string_view key, const Config& config) {
  for (const Switch& one : kSwitches) {
    const bool named = key == one.key || key.substr(0, key.find('.')) == one.key;
    if (!named || one.is_on(config)) continue;
    return fmt::format("has no effect while {} = {}; set {}, or leave it out", one.by,
                       to_text(get(*find_key(one.by), config)), one.remedy);
  }
  return {};
}

}  // namespace trireme::config
