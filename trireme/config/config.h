#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/config/choices.h"

namespace trireme::config {

// One struct per section of the file. The initialisers are the defaults; keys.cpp has the meaning
// and the limits of each key.

struct Run {
  std::string dir = "runs/default";
  int64_t seed = 1;
  int64_t steps = 200;  ///< 0 after loading where epochs is over 0
  int64_t epochs = 0;
  Device device = Device::Auto;
  int64_t threads = 0;
  Deterministic deterministic = Deterministic::Auto;  ///< Auto: on the CPU, not on a GPU
  Graph graph = Graph::Auto;
  bool operator==(const Run&) const = default;
};

struct Model {
  std::string kind = "gpt";  ///< a name that models/registry.h knows
  int64_t layers = 4, hidden = 128, heads = 4;
  int64_t kv_heads = 0;  ///< 0: as many as heads; resolved() fills it in
  int64_t ffn = 0;       ///< 0: 4 x hidden; resolved() fills it in
  int64_t seq = 128, vocab = 256;
  double dropout = 0, attention_dropout = 0;
  bool tie = true;
  // llama
  int64_t head_dim = 0;  ///< 0: hidden / heads
  double norm_eps = 1e-5;
  bool qkv_bias = false;
  double rope_theta = 10000;
  RopePairs rope_pairs = RopePairs::Halves;
  RopeScaling rope_scaling = RopeScaling::None;
  double rope_factor = 1, rope_low = 1, rope_high = 4;
  int64_t rope_seq = 0;  ///< 0: seq
  // images
  int64_t classes = 10, image = 32, channels = 3;
  int64_t depth = 18, patch = 4;
  Stem stem = Stem::Cifar;
  Pixels pixels = Pixels::ChannelsFirst;
  BatchNormKind batch_norm = BatchNormKind::Sync;
  // moe-gpt, moe-llama
  int64_t experts = 8, top_k = 2;
  double capacity = 0, balance = 0.01;
  RouterKind router = RouterKind::Softmax;
  double z_loss = 0, bias_rate = 0.001;
  int64_t router_groups = 1, router_top_groups = 1;
  int64_t shared_experts = 0;
  int64_t expert_ffn = 0;  ///< 0: ffn; resolved() fills it in
  bool expert_gated = false;
  double expert_dropout = 0;
  std::string from = {};  ///< folder of the first weights
  bool operator==(const Model&) const = default;

  bool has_attention() const { return kind != "mlp" && kind != "resnet"; }
  bool has_experts() const { return kind == "moe-gpt" || kind == "moe-llama"; }
  bool has_biased_router() const { return has_experts() && router == RouterKind::SigmoidBias; }
  bool is_llama() const { return kind == "llama" || kind == "moe-llama"; }
  /// Does it choose a class for an image? Others predict tokens.
  bool has_images() const { return kind == "resnet" || kind == "vit"; }
  const char* counted() const { return has_images() ? "images" : "tokens"; }  ///< per second
  /// The predictions that a sample asks for.
  int64_t targets() const { return has_attention() && !has_images() ? seq : 1; }
};

/// One source of a blend, which is data.kind as a list of tables.
struct DataSource {
  DataKind kind = DataKind::Tokens;
  std::string path;
  double weight = 1;  ///< its share, relative to the others
  bool operator==(const DataSource&) const = default;
};

struct Data {
  DataKind kind = DataKind::Markov;
  std::vector<DataSource> blend = {};  ///< data.kind as a list of tables; none: kind says it
  std::string path, valid;
  std::string tokenizer = {}, chat = {};
  Augment augment = Augment::None;
  int64_t workers = 1;
  int64_t samples = 8192;
  int64_t classes = 16;  ///< of the tokens of the generated language
  bool allow_change = false;
  bool documents = false;  ///< attention stops where a document ends
  int64_t eod = -1;        ///< the token that ends a document; below 0: the tokenizer's
  bool operator==(const Data&) const = default;

  /// Those of the blend, or the one that kind and path name.
  std::vector<DataSource> sources() const {
    return blend.empty() ? std::vector<DataSource>{{.kind = kind, .path = path}} : blend;
  }
};

struct Batch {
  int64_t global = 32, micro = 8;
  bool operator==(const Batch&) const = default;
};

/// Parameters that are trained in another way than the rest; nothing where optim says it.
struct ParameterGroup {
  std::string match;  ///< a pattern of names
  std::optional<double> lr = {}, weight_decay = {};
  bool operator==(const ParameterGroup&) const = default;
};

struct Optim {
  OptimizerKind kind = OptimizerKind::AdamW;
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.95};  ///< exactly two
  double eps = 1e-8, weight_decay = 0.1, momentum = 0.9, clip = 1.0;
  RateSchedule schedule = RateSchedule::Cosine;
  int64_t warmup = 0;
  double final = 0.1;
  std::vector<ParameterGroup> groups = {};  ///< the first that matches a name has it
  bool operator==(const Optim&) const = default;
};

struct Lora {
  int64_t rank = 0;  ///< 0: no adapters
  double alpha = 0;  ///< 0: as rank, so that the scale is 1
  std::vector<std::string> targets = {};
  bool operator==(const Lora&) const = default;
};

/// Degrees as the file asks for them; resolve_mesh turns them into Degrees.
struct MeshKeys {
  int64_t replica = 0, shard = 1, tensor = 1, pipe = 1, context = 1, expert = 1;
  bool operator==(const MeshKeys&) const = default;
};

struct Context {
  ContextKind kind = ContextKind::Ring;
  bool operator==(const Context&) const = default;
};

struct TensorKeys {
  bool sequence = true;
  bool operator==(const TensorKeys&) const = default;
};

struct PipelineKeys {
  std::string schedule = "1f1b";  ///< a name of pipeline::names(), or a file
  int64_t stages_per_rank = 1;
  Balance balance;
  bool keep_gathered = true;
  bool vertical_sync = false, lr_by_delay = false;
  bool operator==(const PipelineKeys&) const = default;
};

struct Precision {
  Dtype compute = Dtype::Float32, reduce = Dtype::Float32;
  Master master = Master::Float32;
  std::vector<std::string> keep = {};
  double loss_scale = 65536;
  int64_t growth = 2000;
  bool operator==(const Precision&) const = default;
};

struct Memory {
  Recompute recompute = Recompute::None;
  ShardedState shard = ShardedState::Parameters;
  Offload offload = Offload::None;
  bool operator==(const Memory&) const = default;
};

struct Sync {
  SyncKind kind = SyncKind::Lockstep;
  int64_t every = 1;
  double seconds = 0;
  int64_t after = 0;
  double momentum = 0.9, time_constant = 0, lr = 1;
  bool nesterov = true;
  int64_t fragments = 1, delay = 0, inner_group = 1;
  double keep_own = 0.5;
  int64_t staleness = 0, servers = 1, copies = 0, server_memory_mib = 0;
  std::string manager = {};
  ServerOptimizer optimizer = ServerOptimizer::Same;
  bool lr_by_staleness = false, backup = false;
  bool operator==(const Sync&) const = default;

  /// Do weights live on a parameter server?
  bool on_servers() const { return kind == SyncKind::Stale || kind == SyncKind::Free; }
  /// Do replicas train on their own between meetings?
  bool is_local() const { return kind != SyncKind::Lockstep && !on_servers(); }
};

struct Compress {
  Compression kind = Compression::None;
  double ratio = 0.01;
  int64_t rank = 4;
  double min_saving = 1;
  bool feedback = true;
  int64_t warmup = 0;
  std::vector<std::string> keep = {};
  Narrow transfers = Narrow::None, gathers = Narrow::None;
  bool operator==(const Compress&) const = default;
};

struct Comm {
  Backend backend = Backend::Auto;
  double timeout_s = 300, bucket_mib = 25;
  double rate_mbit = 0;
  bool overlap_experts = false;
  bool operator==(const Comm&) const = default;
};

struct Checkpoint {
  int64_t every = 0, keep = 3;
  Resume resume;
  bool operator==(const Checkpoint&) const = default;
};

struct Eval {
  int64_t every = 0, batches = 0;
  bool operator==(const Eval&) const = default;
};

struct Log {
  int64_t every = 10;
  bool trace = false, tensorboard = false, samples = false;
  bool operator==(const Log&) const = default;
};

struct Check {
  int64_t hash_every = 0;
  bool finite = true;
  bool operator==(const Check&) const = default;
};

/// The configuration of a run.
struct Config {
  Run run;
  Model model;
  Data data;
  Batch batch;
  Optim optim;
  Lora lora;
  MeshKeys mesh;
  Context context;
  TensorKeys tensor;
  PipelineKeys pipeline;
  Precision precision;
  Memory memory;
  Sync sync;
  Compress compress;
  Comm comm;
  Checkpoint checkpoint;
  Eval eval;
  Log log;
  Check check;
  bool operator==(const Config&) const = default;
};

}  // namespace trireme::config
