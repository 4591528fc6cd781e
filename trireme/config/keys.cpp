#include "trireme/config/keys.h"

#include <algorithm>

#include "trireme/config/tables.h"

namespace trireme::config {

namespace {

template <class Choice>
void read_text(const std::string& text, Choice& choice) {
  for (const auto& word : Words<Choice>::all)
    if (word.text == text) choice = word.choice;
}
void read_text(const std::string& text, std::string& member) {
  member = text;
}
void read_text(const std::string& text, Balance& balance) {
  balance = parse_balance(text).value();
}
void read_text(const std::string& text, Resume& resume) {
  resume = parse_resume(text);
}

template <class T>
std::string text_of(const T& member) {
  return std::string(to_string(member));
}
std::string text_of(const std::string& member) {
  return member;
}

/// `Access` is a lambda without captures that takes a Config to one of its members.
template <class Access>
Member member_of(Access access) {
  using T = std::remove_reference_t<decltype(access(std::declval<Config&>()))>;
  constexpr bool is_plain = std::is_constructible_v<Value, T> && !std::is_same_v<T, std::string>;
  if constexpr (is_plain)
    return +access;
  else
    return TextMember{
        // Access has no const form; here it only reads.
        [](const Config& config) { return text_of(Access{}(const_cast<Config&>(config))); },
        [](Config& config, const std::string& text) { read_text(text, Access{}(config)); }};
}

// The name of a key and its member, from one spelling.
#define KEY(path) #path, member_of([](Config & config) -> auto& { return config.path; })

// The same for a vector of structs that tables.cpp knows.
#define TABLES(path)                                                                        \
  TablesMember {                                                                            \
    [](const Config& config) { return rows_of(config.path); },                              \
        [](Config& config, const Rows& rows) { read_rows(rows, config.path); },             \
        columns_of<std::remove_cvref_t<decltype(std::declval<Config&>().path)>::value_type> \
  }

const Limits kCount = {.at_least = 0};
const Limits kSize = {.at_least = 1, .fits_int = true};
const Limits kSizeOrAuto = {.at_least = 0, .fits_int = true};
const Limits kThreads = {.at_least = 0, .at_most = 1024};
const Limits kWorkers = {.at_least = 1, .at_most = 1024};
const Limits kNotNegative = {.at_least = 0};
const Limits kBelowOne = {.at_least = 0, .less_than = 1};
const Limits kServers = {.at_least = 1, .at_most = 1024};
const Limits kMebibytes = {.at_least = 0, .at_most = 1 << 30};
const Limits kFilled = {.not_empty = true};
const Limits kBalance = {
    .not_empty = true,
    .can_read = [](const std::string& text) { return parse_balance(text).has_value(); },
    .unreadable = "is neither \"time\" nor \"params\" nor a list of layers such as \"3,5,5,3\""};

const Key kTable[] = {
    {KEY(run.dir), "folder of everything that the run writes", kFilled},
    {KEY(run.seed), "seed of weights, data order and dropout", kCount},
    {KEY(run.steps), "optimizer steps; 0: initialise, save, stop", kCount},
    {KEY(run.epochs), "passes over the data, instead of steps", kCount},
    {KEY(run.device), "device of the tensors", one_of<Device>()},
    {KEY(run.threads), "intra-op threads per rank; 0: cores / local ranks", kThreads},
    {KEY(run.deterministic), "the same bits every time; auto: true on the CPU, false on a GPU",
     one_of<Deterministic>()},
    {KEY(run.graph), "GPU: record a step once and replay it, where that is possible",
     one_of<Graph>()},

    {KEY(model.kind),
     "architecture",
     {.words = {"mlp", "gpt", "llama", "resnet", "vit", "moe-gpt", "moe-llama"}}},
    {KEY(model.layers), "blocks", {.at_least = 1, .at_most = 10'000}},
    {KEY(model.hidden), "width of the residual stream", kSize},
    {KEY(model.heads), "attention heads", kSize},
    {KEY(model.kv_heads), "heads of keys and values; 0: as many as heads", kSizeOrAuto},
    {KEY(model.ffn), "width inside the feed-forward block; 0: 4 x hidden", kSizeOrAuto},
    {KEY(model.seq), "tokens in a sample", kSize},
    {KEY(model.vocab), "number of different tokens", {.at_least = 2, .fits_int = true}},
    {KEY(model.dropout), "dropout of residuals and embeddings", kBelowOne},
    {KEY(model.attention_dropout), "dropout of attention weights; over 0 takes the unfused path",
     kBelowOne},
    {KEY(model.tie), "output layer shares the embedding's weights"},
    {KEY(model.head_dim), "llama: width of a head; 0: hidden / heads", kSizeOrAuto},
    {KEY(model.norm_eps), "llama: added to the mean square", kNotNegative},
    {KEY(model.qkv_bias), "llama: biases of q, k and v, as Qwen has"},
    {KEY(model.rope_theta), "llama: base of the rotary frequencies", {.more_than = 1}},
    {KEY(model.rope_pairs), "llama: elements of a head that rotate together", one_of<RopePairs>()},
    {KEY(model.rope_scaling), "llama: how positions reach beyond rope_seq", one_of<RopeScaling>()},
    {KEY(model.rope_factor), "llama: how many times rope_seq they reach", {.at_least = 1}},
    {KEY(model.rope_low),
     "llama3: wavelengths above rope_seq / this are stretched",
     {.more_than = 0}},
    {KEY(model.rope_high), "llama3: wavelengths below rope_seq / this are not", {.more_than = 0}},
    {KEY(model.rope_seq), "llama: positions before scaling; 0: seq", kSizeOrAuto},
    {KEY(model.classes), "images: labels to tell apart", kSize},
    {KEY(model.image), "images: height and width in pixels", kSize},
    {KEY(model.channels), "images: 3 for colour, 1 for grey", kSize},
    {KEY(model.depth), "resnet: 18 or 50 layers", kSize},
    {KEY(model.stem), "resnet: first layers", one_of<Stem>()},
    {KEY(model.pixels), "resnet: how images lie in memory", one_of<Pixels>()},
    {KEY(model.batch_norm), "resnet: statistics of all ranks' rows, or of each rank's",
     one_of<BatchNormKind>()},
    {KEY(model.patch), "vit: height and width of a patch", kSize},
    {KEY(model.from),
     "first weights: a checkpoint, or a Hugging Face folder; model's sizes are its"},
    {KEY(model.experts), "experts: how many a layer has", kSize},
    {KEY(model.top_k), "experts: how many see a token", kSize},
    {KEY(model.capacity),
     "experts: most tokens of a sequence that an expert takes in training, as a multiple of an "
     "even share; 0: all",
     kNotNegative},
    {KEY(model.balance), "experts: weight of the load-balancing loss", kNotNegative},
    {KEY(model.router), "experts: how a token chooses its experts", one_of<RouterKind>()},
    {KEY(model.z_loss), "experts: weight of the squared log-sum-exp of the router's scores",
     kNotNegative},
    {KEY(model.bias_rate), "experts: sigmoid-bias: how far a bias moves in a step", kNotNegative},
    {KEY(model.router_groups), "experts: groups of experts among which a token first chooses",
     kSize},
    {KEY(model.router_top_groups), "experts: groups that a token may choose from", kSize},
    {KEY(model.shared_experts), "experts: others that every token sees", kSizeOrAuto},
    {KEY(model.expert_ffn), "experts: width inside of one; 0: ffn", kSizeOrAuto},
    {KEY(model.expert_gated), "experts: of moe-gpt are SwiGLU, instead of GELU"},
    {KEY(model.expert_dropout), "experts: dropout inside of them", kBelowOne},

    {KEY(data.kind), "where samples come from", one_of<DataKind>(), Built::Now, TABLES(data.blend)},
    {KEY(data.path), "training data; if data.kind is not given, it becomes tokens"},
    {KEY(data.valid), "validation data; empty: none"},
    {KEY(data.tokenizer),
     "text, jsonl: tokenizer.json, or a folder with it or vocab.json and merges.txt; empty: bytes"},
    {KEY(data.chat), "jsonl: file of a chat template; empty: that of the tokenizer"},
    {KEY(data.augment), "images: random crops and flips in training", one_of<Augment>()},
    {KEY(data.workers), "threads of a rank that read samples", kWorkers},
    {KEY(data.samples), "markov: samples in an epoch", {.at_least = 1}},
    {KEY(data.classes),
     "markov: classes of tokens; the language has as many rules as their cube",
     {.at_least = 2, .at_most = 128}},
    {KEY(data.allow_change), "allow a run to continue on other data"},
    {KEY(data.documents), "text, tokens: attention does not look beyond the border of a document"},
    {KEY(data.eod),
     "documents: the token that ends one; -1: that of data.tokenizer",
     {.at_least = -1, .fits_int = true}},

    {KEY(batch.global), "samples per optimizer step, over all ranks", kSize},
    {KEY(batch.micro), "most samples of a rank's micro-batch", kSize},

    {KEY(optim.kind), "optimizer", one_of<OptimizerKind>()},
    {KEY(optim.lr), "highest learning rate", kNotNegative},
    {KEY(optim.betas),
     "adamw: decay of the two moments",
     {.at_least = 0, .less_than = 1, .count = 2}},
    {KEY(optim.eps), "adamw: added to the denominator", kNotNegative},
    {KEY(optim.weight_decay), "decay of parameters with two or more dims", kNotNegative},
    {KEY(optim.momentum), "sgd: momentum", kBelowOne},
    {KEY(optim.clip), "largest norm of the gradient; 0: off", kNotNegative},
    {KEY(optim.schedule), "learning rate after the warmup", one_of<RateSchedule>()},
    {KEY(optim.warmup), "steps of linear warmup", kCount},
    {KEY(optim.final), "last learning rate as a fraction of lr", {.at_least = 0, .at_most = 1}},
    {"optim.groups", TABLES(optim.groups),
     "parameters with another lr or weight_decay: [{match, lr, weight_decay}, ...]"},

    {KEY(lora.rank), "rank of low-rank adapters; 0: none", kSizeOrAuto},
    {KEY(lora.alpha), "adapters are scaled by alpha / rank; 0: by 1", kNotNegative},
    {KEY(lora.targets), "patterns of the layers that get adapters, as [\"*.attn.*\"]"},

    {KEY(mesh.replica), "data-parallel copies; 0: what is left of the world", kSizeOrAuto},
    {KEY(mesh.shard), "ranks that share one copy's state; 0: what is left", kSizeOrAuto},
    {KEY(mesh.tensor), "ranks that share each layer", kSize},
    {KEY(mesh.pipe), "ranks in a pipeline of stages", kSize},
    {KEY(mesh.context), "ranks that share a sequence", kSize},
    {KEY(mesh.expert), "ranks that share the experts; divides replica x shard x context", kSize},

    {KEY(context.kind), "attention over a sequence that is cut", one_of<ContextKind>()},

    {KEY(tensor.sequence), "sequence parallelism inside tensor parallel regions"},

    {KEY(pipeline.schedule),
     "gpipe, 1f1b, interleaved, looped-bfs, zb-h1, zb-v, dualpipe-v, pipedream, pipedream-2bw, or "
     "a "
     "file",
     kFilled},
    {KEY(pipeline.stages_per_rank), "stages on every rank of the pipeline", kSize},
    {KEY(pipeline.balance), "layers per stage: even in time or in params, or a list as \"3,5,5,3\"",
     kBalance},
    {KEY(pipeline.keep_gathered),
     "keep sharded weights gathered, and gradients whole, over the micro-batches of a step"},
    {KEY(pipeline.vertical_sync),
     "pipedream: a step uses one version of the weights on all stages"},
    {KEY(pipeline.lr_by_delay), "pipedream: a stage divides the learning rate by its delay"},

    {KEY(precision.compute), "dtype of forward and backward", one_of<Dtype>()},
    {KEY(precision.reduce), "dtype of gradients on the wire", one_of<Dtype>()},
    {KEY(precision.master), "16 bits: what the optimizer updates; none: the weights themselves",
     one_of<Master>()},
    {KEY(precision.keep), "16 bits: patterns of parameters that stay float32, as [\"*ln*\"]"},
    {KEY(precision.loss_scale),
     "float16: the first scale of the loss",
     {.at_least = 1, .at_most = 0x1p100}},
    {KEY(precision.growth), "float16: good steps after which the scale doubles", {.at_least = 1}},

    {KEY(memory.recompute), "activations to recompute in backward", one_of<Recompute>()},
    {KEY(memory.shard), "what mesh.shard shards", one_of<ShardedState>()},
    {KEY(memory.offload), "what lives in host memory", one_of<Offload>()},

    {KEY(sync.kind), "how replicas agree", one_of<SyncKind>()},
    {KEY(sync.every), "local updates: steps between two meetings", {.at_least = 1}},
    {KEY(sync.seconds), "local updates: seconds between two meetings, instead of steps",
     kNotNegative},
    {KEY(sync.after), "post-local: lockstep steps before the first local one", kCount},
    {KEY(sync.momentum), "bmuf, slowmo, diloco: outer momentum", kBelowOne},
    {KEY(sync.time_constant),
     "bmuf: samples after which momentum has decayed to 1/e, instead of momentum", kNotNegative},
    {KEY(sync.lr), "bmuf, slowmo, diloco: outer learning rate", kNotNegative},
    {KEY(sync.nesterov), "bmuf, diloco: Nesterov's form of the momentum"},
    {KEY(sync.fragments), "diloco: parts of the model that meet in turn", kSize},
    {KEY(sync.delay), "diloco: steps between a fragment's meeting and its use", kCount},
    {KEY(sync.keep_own),
     "diloco with a delay: how much of its own weights a replica keeps",
     {.at_least = 0, .less_than = 1}},
    {KEY(sync.inner_group), "replicas that also average after every step, as those of a host",
     kSize},
    {KEY(sync.staleness), "stale: steps that a worker may be ahead; 0: lockstep on servers",
     kCount},
    {KEY(sync.servers), "stale, free: processes that serve parameters", kServers},
    {KEY(sync.copies), "stale, free: other servers that also hold each parameter", kCount},
    {KEY(sync.server_memory_mib),
     "stale, free: what a server may keep of weights and optimizer states; 0: no limit",
     kMebibytes},
    {KEY(sync.manager),
     "stale, free: where the manager keeps its log; empty: run.dir; or etcd://host:port"},
    {KEY(sync.optimizer), "stale, free: optimizer of the servers; empty: optim.kind",
     one_of<ServerOptimizer>()},
    {KEY(sync.lr_by_staleness), "stale, free: a push that missed n updates counts 1 / (1 + n)"},
    {KEY(sync.backup), "stale, free: idle workers repeat what slow ones have not finished"},

    {KEY(compress.kind), "compression of gradients on the wire", one_of<Compression>()},
    {KEY(compress.ratio),
     "topk, randomk: fraction of a gradient that is sent",
     {.more_than = 0, .at_most = 1}},
    {KEY(compress.rank), "powersgd: columns of the two factors", kSize},
    {KEY(compress.min_saving),
     "powersgd: compress matrices whose factors are so many times smaller",
     {.at_least = 0}},
    {KEY(compress.feedback), "add what was not sent to the next gradient", {}},
    {KEY(compress.warmup), "updates that send everything", kCount},
    {KEY(compress.keep), "patterns of parameters that are never compressed", {}},
    {KEY(compress.transfers), "dtype of activations between stages", one_of<Narrow>()},
    {KEY(compress.gathers), "dtype of sharded weights when they are gathered", one_of<Narrow>()},

    {KEY(comm.backend), "how ranks communicate", one_of<Backend>()},
    {KEY(comm.timeout_s), "seconds before an operation fails", {.more_than = 0, .at_most = 1e9}},
    {KEY(comm.bucket_mib), "MiB of gradients reduced together", {.more_than = 0, .at_most = 1e6}},
    {KEY(comm.overlap_experts),
     "half of a micro-batch's tokens travel while the experts of the other half compute"},
    {KEY(comm.rate_mbit), "tcp: most Mbit/s that a connection sends; 0: no limit", kNotNegative},

    {KEY(checkpoint.every), "steps between two checkpoints; 0: only at the end and on a signal",
     kCount},
    {KEY(checkpoint.keep), "how many of the newest checkpoints to keep", {.at_least = 1}},
    {KEY(checkpoint.resume), "auto: from the newest checkpoint; never; or from this folder",
     kFilled},

    {KEY(eval.every), "steps between two evaluations; 0: never", kCount},
    {KEY(eval.batches), "batches of an evaluation; 0: all", kCount},

    {KEY(log.every), "steps between two printed lines", {.at_least = 1}},
    {KEY(log.trace), "write trace.json"},
    {KEY(log.tensorboard), "write events.* for TensorBoard"},
    {KEY(log.samples), "write the samples of every step to samples.jsonl"},

    {KEY(check.hash_every), "steps between two comparisons of the replicas; 0: never", kCount},
    {KEY(check.finite), "stop at the first loss or gradient that is not finite"},
};

#undef KEY

}  // namespace

std::span<const Key> keys() {
  return kTable;
}

std::span<const std::string_view> sections() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> found;
    for (const Key& key : keys())
      if (found.empty() || found.back() != key.section()) found.push_back(key.section());
    return found;
  }();
  return names;
}

const Key* find_key(std::string_view name) {
  const auto key = std::ranges::find(kTable, name, &Key::name);
  return key == std::end(kTable) ? nullptr : key;
}

const TablesMember* Key::tables() const {
  return or_tables ? &*or_tables : std::get_if<TablesMember>(&member);
}

Value get(const Key& key, const Config& config) {
  if (const TablesMember* tables = key.tables()) {
    Rows rows = tables->get(config);
    if (!rows.empty() || !key.or_tables) return rows;
  }
  // The accessors take a mutable Config; here it is only read.
  auto& readable = const_cast<Config&>(config);
  return std::visit(
      [&](auto member) -> Value {
        if constexpr (requires { member.get(config); })
          return member.get(config);
        else
          return member(readable);
      },
      key.member);
}

void set(const Key& key, Config& config, const Value& value) {
  const auto* rows = std::get_if<Rows>(&value);
  if (const TablesMember* tables = key.tables()) tables->set(config, rows ? *rows : Rows{});
  if (rows != nullptr) return;
  std::visit(
      [&](auto member) {
        if constexpr (std::is_same_v<decltype(member), TextMember>) {
          member.set(config, std::get<std::string>(value));
        } else if constexpr (!std::is_same_v<decltype(member), TablesMember>) {
          auto& place = member(config);
          place = std::get<std::remove_reference_t<decltype(place)>>(value);
        }
      },
      key.member);
}

}  // namespace trireme::config
