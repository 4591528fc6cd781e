#include "trireme/config/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "trireme/config/keys.h"
#include "trireme/core/error.h"

namespace trireme::config {

namespace {

template <class... Args>
void need(bool ok, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!ok) throw ConfigError(fmt::format(sentence, std::forward<Args>(args)...));
}

/// What goes with rotary positions.
void validate_rope(const Model& model) {
  const int64_t head = model.head_dim > 0 ? model.head_dim : model.hidden / model.heads;
  need(head % 2 == 0,
       "model.{} = {}: a head of {} elements cannot be divided into pairs that rotate together; "
       "its width must be even",
       model.head_dim > 0 ? "head_dim" : "heads", model.head_dim > 0 ? head : model.heads, head);
  need(head > 2 || model.rope_scaling != RopeScaling::Dynamic,
       "model.rope_scaling = \"dynamic\" needs heads of 4 elements at least, not {}", head);
  need(model.rope_low < model.rope_high || model.rope_scaling != RopeScaling::Llama3,
       "model.rope_low = {} must be less than model.rope_high = {}", model.rope_low,
       model.rope_high);
}

/// What goes with a mixture of experts.
void validate_experts(const Model& model) {
  const int64_t groups = model.router_groups, top_groups = model.router_top_groups;
  need(model.top_k <= model.experts, "model.top_k = {} is more than model.experts = {}",
       model.top_k, model.experts);
  need(model.router != RouterKind::ExpertChoice,
       "model.router = \"expert-choice\": each expert would choose among all tokens of a sequence, "
       "also later ones, so that a token's output would depend on tokens that a causal model must "
       "not see; use {}",
       "\"softmax\", \"normalised\", \"sigmoid-bias\" or \"grouped\"");
  need(model.experts % groups == 0, "model.experts = {} cannot be divided into router_groups = {}",
       model.experts, groups);
  need(top_groups <= groups, "model.router_top_groups = {} is more than model.router_groups = {}",
       top_groups, groups);
  need(model.top_k <= model.experts / groups * top_groups,
       "model.top_k = {} is more than the {} experts of router_top_groups = {} groups", model.top_k,
       model.experts / groups * top_groups, top_groups);
  const double share = model.capacity * static_cast<double>(model.seq * model.top_k) /
                       static_cast<double>(model.experts);
  need(model.capacity == 0 || share >= 1,
       "model.capacity = {} would drop everything: an expert would take {:.3g} of the {} tokens of "
       "a "
       "sequence; use at least {:.3g}, or 0 for all",
       model.capacity, share, model.seq,
       static_cast<double>(model.experts) / static_cast<double>(model.seq * model.top_k));
}

void validate_model(const Model& model) {
  if (model.has_attention()) {  // other models ignore heads
    need(model.hidden % model.heads == 0 || (model.is_llama() && model.head_dim > 0),
         "model.hidden = {} is not a multiple of model.heads = {}", model.hidden, model.heads);
    need(model.kv_heads > 0 && model.heads % model.kv_heads == 0,
         "model.heads = {} is not a multiple of model.kv_heads = {}", model.heads, model.kv_heads);
  }
  if (model.kind == "resnet")
    need(model.depth == 18 || model.depth == 50, "model.depth = {}; a resnet has 18 or 50 layers",
         model.depth);
  if (model.kind == "vit")
    need(model.image % model.patch == 0, "model.image = {} is not a multiple of model.patch = {}",
         model.image, model.patch);
  if (model.is_llama()) validate_rope(model);
  if (model.has_experts()) validate_experts(model);
}

/// Refuses sizes whose products overflow when they are counted in bytes.
void validate_sizes(const Model& model, const Batch& batch) {
  constexpr double kMost = 1e15;
  const auto number = [](int64_t size) { return static_cast<double>(size); };
  const double width = number(model.hidden);
  const bool mixes = model.has_experts();
  const double ffn = number(mixes && model.expert_ffn > 0 ? model.expert_ffn : model.ffn);
  const auto wide_with = [&](int64_t experts) { return ffn * number(experts) + 4 * width; };
  const double wide = wide_with(mixes ? model.top_k + model.shared_experts : 1);
  const double parameters =
      number(model.layers) * width * wide_with(mixes ? model.experts + model.shared_experts : 1) +
      (number(model.vocab) + number(model.seq)) * width;
  need(parameters < kMost,
       "model: layers {} x hidden {} x ffn {}{} with vocab {} and seq {} are about "
       "{:.0e} parameters; at most 1e15 can be counted",
       model.layers, model.hidden, ffn, mixes ? fmt::format(" x {} experts", model.experts) : "",
       model.vocab, model.seq, parameters);
  const double rows = number(std::min(batch.micro, batch.global)) * number(model.seq);
  const double each =
      number(model.layers) * (wide + number(model.heads) * number(model.seq)) + number(model.vocab);
  need(rows * each < kMost,
       "batch.micro = {} samples of model.seq = {} are about {:.0e} activations; "
       "at most 1e15 can be counted",
       batch.micro, model.seq, rows * each);
}

/// A model of images needs images.
void validate_images(const Config& config) {
  if (!config.model.has_images()) return;
  const Recompute recompute = config.memory.recompute;
  need(
      config.model.kind != "resnet" ||
          (recompute != Recompute::Selective && recompute != Recompute::Cheap),
      "memory.recompute = \"{}\" saves nothing in a resnet: it has no attention, and its norms are "
      "one pass with their ReLU; use \"block\"",
      to_string(recompute));
  const auto& blend = config.data.blend;
  const auto is_of_images = [](const DataSource& one) { return has_images(one.kind); };
  need(std::ranges::all_of(config.data.sources(), is_of_images),
       "model.kind = \"{}\" chooses classes of images, and data.kind = {} has none; use \"idx\", "
       "\"cifar\" or \"images\"",
       config.model.kind,
       blend.empty() ? fmt::format("\"{}\"", to_string(config.data.kind)) : "[...]");
}

/// The ranks of the tensor axis share the heads; with more ranks than heads, heads are copied.
void validate_heads(const Model& model, int64_t tensor) {
  for (const auto& [name, heads] :
       {std::pair("heads", model.heads), std::pair("kv_heads", model.kv_heads)})
    need(tensor <= heads || tensor % heads == 0,
         "mesh.tensor = {} does not fit model.{} = {}: use at most {}, or a multiple of it", tensor,
         name, heads, heads);
}

/// The ranks of the context axis share each sequence.
void validate_context(const Config& config) {
  const auto& [model, mesh] = std::tie(config.model, config.mesh);
  if (mesh.context == 1) return;
  need(model.has_attention() && !model.has_images(),
       "mesh.context = {} cuts sequences along their length, which model.kind = \"{}\" cannot do; "
       "use \"gpt\" or \"llama\"",
       mesh.context, model.kind);
  need(model.seq >= 2 * mesh.context,
       "mesh.context = {} cuts a sequence in {} pieces, a head and a tail for each rank, but "
       "model.seq = {}; use at most mesh.context={}",
       mesh.context, 2 * mesh.context, model.seq, std::max<int64_t>(1, model.seq / 2));
  const int64_t heads = mesh.tensor <= model.kv_heads
                            ? model.kv_heads / mesh.tensor * (model.heads / model.kv_heads)
                            : model.heads / mesh.tensor;
  need(config.context.kind != ContextKind::Ulysses || heads >= mesh.context,
       "context.kind = \"ulysses\" deals the heads of a rank to mesh.context = {}, but "
       "model.heads = {} over mesh.tensor = {} are {} on a rank; use context.kind = \"ring\"",
       mesh.context, model.heads, mesh.tensor, heads);
}

/// Documents are told apart by the token that ends one.
void validate_documents(const Config& config) {
  if (!config.data.documents) return;
  need(config.model.has_attention() && !config.model.has_images(),
       "data.documents = true is for attention over tokens, which model.kind = \"{}\" has not; "
       "leave it out",
       config.model.kind);
  for (const DataSource& one : config.data.sources())
    need(one.kind == DataKind::Tokens || one.kind == DataKind::Text,
         "data.documents = true needs samples of several documents, and one of data.kind = \"{}\" "
         "is a single one; use \"tokens\" or \"text\", or leave data.documents out",
         to_string(one.kind));
  need(config.data.eod < config.model.vocab, "data.eod = {} is not below model.vocab = {}",
       config.data.eod, config.model.vocab);
  const auto is_text = [](const DataSource& one) { return one.kind == DataKind::Text; };
  need(config.data.eod >= 0 || !config.data.tokenizer.empty() ||
           std::ranges::all_of(config.data.sources(), is_text),
       "data.documents = true needs to know which token ends a document: set data.eod, or "
       "data.tokenizer");
}

/// A group's learning rate follows that of all others, as a factor of it.
void validate_groups(const Config& config) {
  for (std::size_t i = 0; i < config.optim.groups.size(); ++i) {
    const ParameterGroup& group = config.optim.groups[i];
    need(config.optim.lr > 0 || group.lr.value_or(0) == 0,
         "optim.groups[{}].lr = {} follows the schedule of optim.lr = 0, which stays 0; set "
         "optim.lr "
         "over 0, and a last group {{match = \"*\", lr = 0}} for what should not move",
         i, group.lr.value_or(0));
    need(config.sync.optimizer != ServerOptimizer::Adagrad || group.weight_decay.value_or(0) == 0,
         "sync.optimizer = \"adagrad\" does not decay weights; leave optim.groups[{}].weight_decay "
         "out",
         i);
  }
}

void validate_sources(const Data& data) {
  const bool is_blend = !data.blend.empty();
  const auto sources = data.sources();
  for (std::size_t i = 0; i < sources.size(); ++i)
    need(sources[i].kind == DataKind::Markov || !sources[i].path.empty(),
         "{} = \"{}\" needs {}, which is empty",
         is_blend ? fmt::format("data.kind[{}].kind", i) : "data.kind", to_string(sources[i].kind),
         is_blend ? fmt::format("data.kind[{}].path", i) : "data.path");
}

/// What goes with a parameter server.
void validate_servers(const Config& config) {
  const Sync& sync = config.sync;
  if (!sync.on_servers()) return;
  const std::string asked = fmt::format("sync.kind = \"{}\"", to_string(sync.kind));
  need(config.lora.rank == 0 || config.model.from.empty(),
       "{}: lora.rank = {} adapts the weights of model.from, which servers do not keep; train such "
       "adapters without servers",
       asked, config.lora.rank);
  need(sync.copies < sync.servers,
       "sync.copies = {} needs {} servers, but sync.servers = {}: use at most {} copies",
       sync.copies, sync.copies + 1, sync.servers, sync.servers - 1);
  need(!config.model.has_biased_router(),
       "{} and model.router = \"sigmoid-bias\" do not go together: biases move by the load of a "
       "whole "
       "step, and no worker knows what the others' tokens chose; use \"normalised\"",
       asked);
  need(config.mesh.expert == 1,
       "{} and mesh.expert = {} do not go together: what servers hold is not cut over experts; "
       "leave mesh.expert out",
       asked, config.mesh.expert);
  need(config.mesh.shard != 0 && config.mesh.replica <= 4096,
       "{}: mesh.replica is the number of workers, at most 4096, and mesh.shard the ranks of each, "
       "so mesh.shard cannot be what is left",
       asked);
  need(config.comm.backend != Backend::Local,
       "{} needs processes that can end one by one, and comm.backend = \"local\" makes threads; "
       "use another backend",
       asked);
  need(config.precision.compute != Dtype::Float16,
       "{} does not scale losses, which precision.compute = \"float16\" needs; use \"bfloat16\"",
       asked);
  need(config.precision.compute != Dtype::BFloat16 || config.precision.master == Master::Float32,
       "{}: servers keep masters in float32; leave precision.master out", asked);
  need(sync.optimizer != ServerOptimizer::Adagrad || config.optim.weight_decay == 0,
       "sync.optimizer = \"adagrad\" does not decay weights; set optim.weight_decay=0");
  const Compression kind = config.compress.kind;
  need(kind != Compression::RandomK && kind != Compression::PowerSgd && kind != Compression::Auto,
       "{} and compress.kind = \"{}\" do not go together: that compressor works on sums of all "
       "ranks; use \"int8\", \"onebit\", \"topk\", \"fp16\" or \"bf16\"",
       asked, to_string(kind));
  need(kind == Compression::None || (config.compress.warmup == 0 && config.compress.keep.empty() &&
                                     config.precision.compute != Dtype::Float64),
       "{}: pushes are compressed all alike, as float32; leave compress.warmup, compress.keep and "
       "precision.compute = \"float64\" out",
       asked);
}

}  // namespace

Config resolved(Config config) {
  if (config.model.kv_heads == 0) config.model.kv_heads = config.model.heads;
  if (config.model.ffn == 0) config.model.ffn = 4 * config.model.hidden;
  if (config.model.expert_ffn == 0) config.model.expert_ffn = config.model.ffn;
  return config;
}

void validate(const Config& config) {
  for (const Key& key : keys())
    if (const auto problem = problem_with(key, get(key, config))) throw ConfigError(*problem);

  const auto& [run, data, mesh] = std::tie(config.run, config.data, config.mesh);
  need(run.epochs == 0 || run.steps == 0,
       "run.epochs = {} and run.steps = {} both say how long to train; give one of them",
       run.epochs, run.steps);
  validate_model(config.model);
  validate_sizes(config.model, config.batch);
  if (config.model.has_attention()) validate_heads(config.model, mesh.tensor);
  need(!config.model.has_experts() || config.model.experts % mesh.expert == 0,
       "model.experts = {} cannot be dealt evenly to mesh.expert = {}: use a divisor",
       config.model.experts, mesh.expert);
  need(!config.model.has_biased_router() || mesh.pipe == 1 ||
           !config.pipeline.schedule.starts_with("pipedream"),
       "model.router = \"sigmoid-bias\" and pipeline.schedule = \"{}\" do not go together: biases "
       "move "
       "by the load of a whole step, and steps overlap there; use \"normalised\", or \"1f1b\"",
       config.pipeline.schedule);
  need(config.model.has_experts() || mesh.expert == 1,
       "mesh.expert = {} deals experts to ranks, and model.kind = \"{}\" has none; use "
       "model.kind = \"moe-gpt\", or leave mesh.expert out",
       mesh.expert, config.model.kind);
  validate_context(config);
  validate_sources(data);
  validate_documents(config);
  validate_groups(config);
  need(config.lora.rank == 0 || !config.lora.targets.empty(),
       "lora.rank = {} needs layers to adapt, but lora.targets is empty; set "
       "lora.targets=[\"*\"] for all of them",
       config.lora.rank);
  validate_images(config);
  validate(config.precision);
  validate(config.sync);
  validate_servers(config);
  need(config.sync.seconds == 0 || (config.check.hash_every == 0 && !config.log.samples),
       "sync.seconds = {}: replicas claim samples as they go, so check.hash_every and log.samples "
       "have no steps to count; leave them out",
       config.sync.seconds);
  need(config.sync.kind == SyncKind::Lockstep || mesh.pipe == 1 ||
           !config.pipeline.schedule.starts_with("pipedream"),
       "sync.kind = \"{}\" and pipeline.schedule = \"{}\" do not go together: stages that are at "
       "different steps cannot meet; use another schedule, or sync.kind = \"lockstep\"",
       to_string(config.sync.kind), config.pipeline.schedule);
  need(config.sync.inner_group == 1 || config.compress.kind != Compression::Auto,
       "compress.kind = \"auto\" with sync.inner_group = {}: the ranks of a group have the same "
       "weights, and each would choose for itself how they travel; name a kind",
       config.sync.inner_group);
  need(mesh.replica != 0 || mesh.shard != 0,
       "mesh.replica and mesh.shard cannot both be 0, which means what is left of the world");
}

void validate(const Sync& sync) {
  if (!sync.is_local()) return;
  need(sync.every == 1 || sync.seconds == 0,
       "sync.every = {} and sync.seconds = {} both say when replicas meet; give one of them",
       sync.every, sync.seconds);
  need(sync.lr > 0, "sync.lr = {} moves nothing; it must be over 0", sync.lr);
  need(sync.seconds == 0 || (sync.fragments == 1 && sync.delay == 0),
       "sync.seconds = {}: blocks that end by the clock have one fragment and no delay, but "
       "sync.fragments = {} and sync.delay = {}",
       sync.seconds, sync.fragments, sync.delay);
  if (sync.kind != SyncKind::DiLoCo) return;  // fragments and delays have no effect elsewhere
  need(sync.fragments <= sync.every,
       "sync.fragments = {} cannot take turns in sync.every = {} steps: use at most as many",
       sync.fragments, sync.every);
  need(
      sync.delay < sync.every || sync.delay == 0,
      "sync.delay = {} must be less than sync.every = {}: a fragment arrives before it meets again",
      sync.delay, sync.every);
}

void validate(const Precision& precision) {
  const Dtype compute = precision.compute, reduce = precision.reduce;
  need(reduce == Dtype::Float32 || reduce == compute ||
           (reduce == Dtype::BFloat16 && compute != Dtype::Float64),
       "precision.reduce = \"{}\" does not go with precision.compute = \"{}\": use {}",
       to_string(reduce), to_string(compute),
       compute == Dtype::Float64   ? "\"float64\", or leave it out"
       : compute == Dtype::Float16 ? "\"float32\", \"bfloat16\" or \"float16\""
                                   : "\"float32\" or \"bfloat16\"");
  need(compute != Dtype::Float16 || precision.master == Master::Float32,
       "precision.master = \"none\" rounds weights at random to bfloat16, not to float16; use "
       "precision.compute = \"bfloat16\", or leave precision.master out");
}

void refuse_evaluation_without_data(const Config& config) {
  const auto is_generated = [](const DataSource& one) { return one.kind == DataKind::Markov; };
  need(std::ranges::all_of(config.data.sources(), is_generated) || config.eval.every == 0 ||
           !config.data.valid.empty(),
       "eval.every asks for evaluation, but data.valid names no file; name one, or set "
       "eval.every=0");
}

void refuse_unbuilt(const Config& config) {
  const Config defaults = resolved({});
  for (const Key& key : keys()) {
    const Value value = get(key, config);
    const std::string text = fmt::format("{} = {}", key.name, to_text(value));
    need(key.built == Built::Now || value == get(key, defaults),
         "{} is not built yet; leave {} out", text, key.name);
    const auto* rows = std::get_if<Rows>(&value);
    need(rows == nullptr || rows->empty() || key.tables()->built == Built::Now,
         "{} is not built yet; use {}", shortened(text), wanted_value(key));
    const auto* word = std::get_if<std::string>(&value);
    const auto& later = key.limits.later;
    need(word == nullptr || std::ranges::find(later, *word) == later.end(),
         "{} is not built yet; use {}", text, wanted_value(key));
  }
}

}  // namespace trireme::config
