// A small training that can be cut in many ways, and held against one rank's.
#pragma once

#include <fmt/format.h>

#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "models/registry.h"
#include "support/backends.h"
#include "trireme/data/loader.h"
#include "trireme/train/datasets.h"
#include "trireme/train/trainer.h"

namespace trireme::test {

// Sums of a few hundred terms in another order, three updates long.
constexpr double kSame = 1e-10;
constexpr int kSteps = 3;

/// What is cut, and what it must survive.
struct Case {
  int replica = 1, shard = 1, tensor = 1;
  config::ShardedState what = config::ShardedState::Parameters;  ///< is sharded
  bool sequence = true, tie = true, masked = false;
  int64_t heads = 4, kv_heads = 4, batch = 8;
  config::Recompute recompute = config::Recompute::None;
  std::string kind = "gpt";
  int64_t seq = 7, vocab = 37, micro = 2;
  int pipe = 1, stages_per_rank = 1, expert = 1;
  int64_t layers = 0;  ///< 0: 2, of an mlp 3
  std::string schedule = "1f1b";
  config::Balance balance = {config::Balance::By::Parameters};
  bool keep_gathered = true;
  config::Dtype dtype = config::Dtype::Float64;
  /// What else is trained in another way: its name, and the keys.
  std::string otherwise = {};
  std::function<void(config::Config&)> change = {};
  int context = 1;
  config::ContextKind how = config::ContextKind::Ring;  ///< of context
  bool documents = false;  ///< every third token ends one; attention does not cross that
};

inline std::string describe(const Case& c) {
  std::string text = fmt::format(
      "{} replica {} shard {} ({}) tensor {} sequence {} tie {} masked {} heads {}/{} batch {} {}",
      c.kind, c.replica, c.shard, to_string(c.what), c.tensor, c.sequence, c.tie, c.masked, c.heads,
      c.kv_heads, c.batch, to_string(c.recompute));
  if (c.pipe > 1)
    text += fmt::format(" pipe {} {} x {} by {} micro {} keep_gathered {}", c.pipe, c.schedule,
                        c.stages_per_rank, to_string(c.balance), c.micro, c.keep_gathered);
  if (c.context > 1)
    text += fmt::format(" context {} {} seq {}", c.context, to_string(c.how), c.seq);
  if (c.expert > 1) text += fmt::format(" expert {}", c.expert);
  return text + (c.documents ? " documents " : " ") + c.otherwise;
}

inline Degrees degrees_of(const Case& c) {
  return {.pipe = c.pipe,
          .replica = c.replica,
          .shard = c.shard,
          .context = c.context,
          .tensor = c.tensor,
          .expert = c.expert};
}

inline config::Config config_of(const Case& c) {
  config::Config config;
  config.precision.compute = config.precision.reduce = c.dtype;
  config.model.kind = c.kind;
  config.model.layers = c.layers > 0 ? c.layers : c.kind == "mlp" ? 3 : 2;
  config.model.hidden = 24;
  config.model.heads = c.heads;
  config.model.kv_heads = c.kv_heads;
  config.model.ffn = 50;  // 50 over 4: 13, 13, 12, 12
  config.model.seq = c.seq;
  config.model.vocab = c.vocab;
  config.model.dropout = 0.1;
  config.model.attention_dropout = 0.1;
  config.model.tie = c.tie;
  if (c.kind == "llama") {  // with what Qwen and longer contexts have
    config.model.head_dim = config.model.hidden / c.heads % 2 == 0 ? 0 : 4;
    config.model.qkv_bias = c.tie;
    config.model.rope_pairs = c.masked ? config::RopePairs::Neighbours : config::RopePairs::Halves;
    config.model.rope_scaling = config::RopeScaling::Llama3;
    config.model.rope_factor = 8;
    config.model.rope_seq = 16;
  }
  config.tensor.sequence = c.sequence;
  config.context.kind = c.how;
  config.memory.recompute = c.recompute;
  config.memory.shard = c.what;
  config.pipeline.schedule = c.schedule;
  config.pipeline.stages_per_rank = c.stages_per_rank;
  config.pipeline.balance = c.balance;
  config.pipeline.keep_gathered = c.keep_gathered;
  config.batch.global = c.batch;
  config.batch.micro = c.micro;
  config.optim.clip = 0.5;  // below the norm: a wrong one shows
  config.optim.lr = 0.01;
  if (c.change) c.change(config);
  return config;
}

/// Sequences of which some labels do not count.
struct Labelled final : data::Dataset {
  explicit Labelled(const Case& of) : c(of) {}
  int64_t size() const override { return 5 * c.batch; }
  data::Sample get(int64_t i) const override {
    const auto all = (torch::arange(c.seq + 1, torch::kLong) * (i + 3) + i * i) % c.vocab;
    auto target = all.narrow(0, 1, c.seq).clone();
    if (c.masked) target.masked_fill_((torch::arange(c.seq) + i) % 3 == 0, nn::kIgnored);
    data::Sample sample{all.narrow(0, 0, c.seq).clone(), target};
    if (c.documents) {  // of 1 to 5 positions
      const at::Tensor places = torch::arange(c.seq);
      sample.documents = torch::where((places * (i + 2)) % 5 < 2, places, 0);
      sample.documents = std::get<0>(sample.documents.cummax(0));
    }
    return sample;
  }
  Case c;
};

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;
};

inline Outcome train(const Case& c, const Mesh& mesh) {
  const config::Config config = config_of(c);
  const auto model = [&](const Mesh& on) { return models::make_model(config, on); };
  train::Trainer trainer(config, mesh, train::build(model, mesh), kSteps);
  const auto data = train::part_of(std::make_shared<Labelled>(c), config, mesh);
  const data::Order order(3, data->size(), c.batch);
  const auto replicas = mesh.samples();
  Outcome outcome;
  for (int step = 1; step <= kSteps; ++step) {
    const auto result = trainer.step(
        step, data::Loader::read(*data, order, replicas.rank(), replicas.size(), step - 1));
    outcome.losses.push_back(result.loss);
    outcome.norms.push_back(result.grad_norm);
  }
  const auto& all = trainer.parameters();
  for (std::size_t i = 0; i < all.size(); ++i)
    outcome.weights[all[i].name] = trainer.attached().value(i);
  return outcome;
}

inline void expect_same(const Outcome& got, const Outcome& alone, const Mesh& mesh, const Case& c) {
  for (std::size_t i = 0; i < alone.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], alone.losses[i], kSame) << "loss of step " << i + 1;
    EXPECT_NEAR(got.norms[i], alone.norms[i], kSame) << "norm of step " << i + 1;
  }
  // Every rank's part of every weight, placed by the layout.
  const config::Config config = config_of(c);
  const auto model = models::make_model(config, mesh);
  for (const auto& one : nn::parameters_of(*model)) {
    if (!alone.weights.contains(one.name)) continue;              // not trained
    if (c.pipe > 1 && !got.weights.contains(one.name)) continue;  // another stage's
    const double largest = alone.weights.at(one.name).abs().max().item<double>();
    for (const LocalBox& held : one.layout.local_boxes(mesh.coord(), mesh.degrees())) {
      const at::Tensor wanted = nn::box_of(alone.weights.at(one.name), held.box);
      const at::Tensor part = nn::part_of(got.weights.at(one.name), held);
      ASSERT_EQ(part.sizes(), wanted.sizes()) << one.name;
      EXPECT_LE((part - wanted).abs().max().item<double>(), kSame * largest) << one.name;
    }
  }
}

/// One rank's outcome does not depend on how it would be cut.
inline const Outcome& alone(const Case& c) {
  static std::map<std::tuple<std::string, bool, bool, bool, std::vector<int64_t>>, Outcome> known;
  const auto key = std::tuple(c.kind + c.otherwise, c.tie, c.masked, c.documents,
                              std::vector{c.heads, c.kv_heads, c.batch, c.seq, c.vocab, c.layers});
  auto found = known.find(key);
  if (found == known.end()) found = known.emplace(key, train(c, mesh_of_one())).first;
  return found->second;
}

inline void check(const Case& c, const BackendUnderTest& backend = kThreads) {
  SCOPED_TRACE(describe(c));
  at::set_num_threads(1);
  const Outcome& expected = alone(c);
  run_world(backend, degrees_of(c).world(), [&](const comm::Communicator& world) {
    at::set_num_threads(1);
    const Mesh mesh(world, degrees_of(c));
    expect_same(train(c, mesh), expected, mesh, c);
  });
}

}  // namespace trireme::test
