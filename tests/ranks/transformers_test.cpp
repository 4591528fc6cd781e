// Llama, Qwen2 and Mixtral have the logits and the losses of Hugging Face's transformers.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <map>

#include "models/registry.h"
#include "support/command.h"
#include "support/scratch.h"
#include "support/training.h"
#include "trireme/format/safetensors.h"
#include "trireme/nn/parameters.h"
#include "trireme/train/trainer.h"

namespace trireme::test {
namespace {

constexpr int kPeerSteps = 20, kPeerRows = 4;

/// A model, and the same as transformers configures it.
struct Peer {
  const char* name;
  config::Model model;
  const char* rope = R"({"rope_type": "default"})";
  config::Dtype dtype = config::Dtype::Float64;
};

config::Model small(int64_t heads, int64_t kv_heads) {
  config::Model model;
  model.kind = "llama";
  model.layers = 2;
  model.hidden = 24;
  model.heads = heads;
  model.kv_heads = kv_heads;
  model.ffn = 50;
  model.seq = 12;
  model.vocab = 37;
  return model;
}

config::Model scaled(config::RopeScaling scaling, double factor, int64_t trained_on) {
  config::Model model = small(2, 1);
  model.hidden = 32;  // heads of 16: enough frequencies that every case of a formula occurs
  model.rope_scaling = scaling;
  model.rope_factor = factor;
  model.rope_seq = trained_on;
  return model;
}

config::Model mixture() {
  config::Model model = small(4, 2);
  model.kind = "moe-llama";
  model.tie = false;
  model.experts = 4;
  model.top_k = 2;
  model.expert_ffn = model.ffn;
  model.router = config::RouterKind::Normalised;
  model.balance = 0;
  return model;
}

std::vector<Peer> peers() {
  using enum config::RopeScaling;
  std::vector<Peer> all = {{"heads 4", small(4, 4)},
                           {"heads 6 over 2", small(6, 2)},
                           {"heads 4 over 1, in float32", small(4, 1)},
                           {"qwen", small(6, 3)},
                           {"qwen, untied", small(4, 2)},
                           {"wide heads", small(3, 1)},
                           {"neighbours", small(2, 2)}};
  all[2].dtype = config::Dtype::Float32;
  all[1].model.tie = all[4].model.tie = false;
  all[3].model.qkv_bias = all[4].model.qkv_bias = true;
  all[4].model.rope_theta = 1e6;
  all[4].model.norm_eps = 1e-6;
  all[5].model.head_dim = 10;
  all[6].model.rope_pairs = config::RopePairs::Neighbours;
  all.push_back({"linear", scaled(Linear, 4, 0), R"({"rope_type": "linear", "factor": 4.0})"});
  all.push_back(
      {"dynamic, beyond", scaled(Dynamic, 3, 5), R"({"rope_type": "dynamic", "factor": 3.0})"});
  all.push_back(
      {"dynamic, within", scaled(Dynamic, 3, 12), R"({"rope_type": "dynamic", "factor": 3.0})"});
  all.push_back(
      {"yarn", scaled(Yarn, 8, 200),
       R"({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 200})"});
  all.push_back({"llama3", scaled(Llama3, 8, 64),
                 R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                     "high_freq_factor": 4.0, "original_max_position_embeddings": 64})"});
  all.push_back({"mixtral", mixture()});
  all.push_back({"mixtral, in float32", mixture()});
  all.back().dtype = config::Dtype::Float32;
  return all;
}

/// transformers' configuration. A dynamic scaling begins beyond max_position_embeddings.
std::string hf_config(const Peer& peer) {
  const config::Model& m = peer.model;
  return fmt::format(
      R"({{"model_type": "{}", "vocab_size": {}, "hidden_size": {}, "intermediate_size": {},
          "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {},
          "head_dim": {}, "max_position_embeddings": {}, "rms_norm_eps": {},
          "tie_word_embeddings": {}, "rope_theta": {}, "rope": {}, "neighbours": {},
          "experts": {}, "top_k": {}, "dtype": "{}"}})",
      m.has_experts() ? "mixtral"
      : m.qkv_bias    ? "qwen2"
                      : "llama",
      m.vocab, m.hidden, m.ffn, m.layers, m.heads, m.kv_heads,
      m.head_dim > 0 ? m.head_dim : m.hidden / m.heads,
      m.rope_scaling == config::RopeScaling::Dynamic ? m.rope_seq : 1000, m.norm_eps, m.tie,
      m.rope_theta, peer.rope, m.rope_pairs == config::RopePairs::Neighbours, m.experts, m.top_k,
      to_string(peer.dtype));
}

/// Large weights, so that whatever is wrong shows. Norms and biases are not what they begin as.
void enlarge(torch::nn::Module& model) {
  model.apply([](torch::nn::Module& one) {
    auto* layer = dynamic_cast<nn::LayerImpl*>(&one);
    if (layer == nullptr) return;
    for (const auto& item : layer->named_parameters(/*recurse=*/false))
      if (layer->declared().find(item.key()) != nullptr)
        layer->init_rule(item.key()) = nn::InitRule::normal(item.value().dim() > 1 ? 0.3 : 1);
  });
}

using Tensors = std::map<std::string, at::Tensor>;

void write(const std::string& path, const Tensors& tensors, const format::Metadata& metadata) {
  std::vector<format::Entry> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back({.name = name,
                       .dtype = tensor.scalar_type() == at::kLong    ? "I64"
                                : tensor.scalar_type() == at::kFloat ? "F32"
                                                                     : "F64",
                       .shape = tensor.sizes().vec()});
  format::SafetensorsWriter writer(path, std::move(entries), metadata);
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor whole = tensor.detach().contiguous();
    writer.append(whole.data_ptr(), static_cast<int64_t>(whole.nbytes()));
  }
  writer.finish();
}

/// The weights before the first step, the tokens of all steps, the logits of the first tokens, and
/// the losses.
Tensors train_ours(const Peer& peer) {
  config::Config config;
  config.run.device = config::Device::Cpu;
  config.model = peer.model;
  config.precision.compute = peer.dtype;
  if (peer.dtype == config::Dtype::Float64) config.precision.reduce = peer.dtype;
  config.batch.global = config.batch.micro = kPeerRows;
  config.optim.lr = 0.003;
  config.optim.schedule = config::RateSchedule::Constant;
  const Mesh mesh = mesh_of_one();
  const auto make = [&](const Mesh& on) {
    auto model = models::make_model(config, on);
    enlarge(*model);
    return model;
  };
  train::Trainer trainer(config, mesh, train::build(make, mesh), kPeerSteps);
  Tensors all;
  for (std::size_t i = 0; i < trainer.parameters().size(); ++i)
    all[trainer.parameters()[i].name] = trainer.attached().value(i).clone();
  // The same in every step, so that something is learnt.
  const at::Tensor tokens =
      (torch::sin(torch::arange(kPeerRows * (peer.model.seq + 1), at::kDouble) * 7) * 1e5)
          .to(at::kLong)
          .remainder(peer.model.vocab)
          .view({1, kPeerRows, -1})
          .repeat({kPeerSteps, 1, 1});
  std::vector<double> losses;
  for (int step = 1; step <= kPeerSteps; ++step) {
    const at::Tensor rows = tokens[step - 1];
    data::Batch batch{.number = step - 1,
                      .sample_ids = {0, 1, 2, 3},
                      .inputs = rows.narrow(1, 0, peer.model.seq).contiguous(),
                      .targets = rows.narrow(1, 1, peer.model.seq).contiguous(),
                      .largest_block = kPeerRows,
                      .smallest_block = kPeerRows,
                      .all_rows = kPeerRows};
    if (step == 1) {
      const at::NoGradGuard no_gradients;
      all["logits"] = trainer.model().forward(batch.inputs);
    }
    losses.push_back(trainer.step(step, batch).loss);
  }
  EXPECT_LT(losses.back(), losses.front() - 0.1) << "nothing was learnt";
  all["tokens"] = tokens;
  all["losses"] = torch::tensor(losses, at::kDouble);
  return all;
}

TEST(Transformers, HaveTheSameLogitsAndLosses) {
  at::set_num_threads(1);
  const Scratch folder;
  const std::vector<Peer> all = peers();
  for (std::size_t i = 0; i < all.size(); ++i)
    write(folder / fmt::format("{:02}.safetensors", i), train_ours(all[i]),
          {{"config", hf_config(all[i])}});
  const auto theirs = run_command(
      {python_with_torch(), TRIREME_SOURCE_DIR "/tests/e2e/torch_llama.py", folder.path()},
      {.environment = {{"OMP_NUM_THREADS", "1"}}, .deadline = kPatience});
  ASSERT_EQ(theirs.code, 0) << theirs.err << "(scripts/setup installs Python's transformers)";
  // For each model the largest difference of a logit, and of a loss, relative to the largest.
  std::istringstream lines(theirs.out);
  for (const Peer& peer : all) {
    double logits = 1, losses = 1;
    lines >> logits >> losses;
    const bool exact = peer.dtype == config::Dtype::Float64;
    EXPECT_LE(logits, exact ? 1e-10 : 1e-4) << peer.name;
    EXPECT_LE(losses, exact ? 1e-10 : 1e-4) << peer.name;
  }
}

}  // namespace
}  // namespace trireme::test
