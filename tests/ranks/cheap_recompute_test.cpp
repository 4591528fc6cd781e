// memory.recompute = "cheap": outputs of norms and of GELU are made again in backward. The same
// bits on every mesh, and less memory.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "models/gpt.h"
#include "models/llama.h"
#include "support/cuts.h"
#include "support/on_gpu.h"
#include "support/tiny_model.h"
#include "trireme/nn/bind.h"
#include "trireme/nn/recompute.h"
#include "trireme/parallel/fully_sharded.h"
#include "trireme/train/memory.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using config::Recompute;

void expect_same_bits(Case c) {
  SCOPED_TRACE(describe(c));
  run_world(kThreads, degrees_of(c).world(), [&](const Communicator& world) {
    at::set_num_threads(1);
    const Mesh mesh(world, degrees_of(c));
    Case cheap = c;
    cheap.recompute = Recompute::Cheap;
    const Outcome wanted = train(c, mesh), got = train(cheap, mesh);
    EXPECT_EQ(got.losses, wanted.losses);
    EXPECT_EQ(got.norms, wanted.norms);
    for (const auto& [name, weight] : wanted.weights)
      EXPECT_TRUE(got.weights.at(name).equal(weight)) << name;
  });
}

TEST(CheapRecompute, GivesTheSameBitsOnEveryMesh) {
  using config::ShardedState;
  for (const auto dtype : {config::Dtype::Float32, config::Dtype::Float64}) {
    const Case cases[] = {
        {.dtype = dtype},
        {.replica = 2, .tensor = 2, .dtype = dtype},
        {.tensor = 2, .sequence = false, .dtype = dtype},
        {.shard = 2, .what = ShardedState::Optimizer, .dtype = dtype},
        {.shard = 2, .what = ShardedState::Gradients, .dtype = dtype},
        {.shard = 2, .tensor = 2, .what = ShardedState::Parameters, .dtype = dtype},
        {.pipe = 2, .schedule = "zb-h1", .dtype = dtype},
        {.pipe = 4, .schedule = "1f1b", .balance = {config::Balance::By::Time}, .dtype = dtype},
        // Norms are released before the deferred gradients are computed.
        {.shard = 2, .pipe = 2, .schedule = "zb-h1", .keep_gathered = false, .dtype = dtype},
        {.kind = "llama", .dtype = dtype},
        {.shard = 2, .tensor = 2, .kind = "llama", .dtype = dtype},
        {.shard = 2,
         .kind = "llama",
         .pipe = 2,
         .schedule = "zb-h1",
         .keep_gathered = false,
         .dtype = dtype},
    };
    for (const Case& c : cases) expect_same_bits(c);
  }
}

struct Bytes {
  int64_t kept = 0, peak = 0;
};

/// The bytes that a forward keeps for backward, and the peak of both.
template <class Model, class Options>
Bytes bytes_of(const Options& options, int64_t rows, bool cheaply) {
  Model model(options, mesh_of_one());
  nn::initialize(*model, 3);
  if (cheaply) nn::recompute_cheaply(*model, nn::WeightsLater::Stay);
  const auto tokens = torch::randint(0, options.vocab, {rows, options.seq}, torch::kLong);
  const train::TensorMemory memory;
  const nn::Loss loss = model->loss(tokens, tokens);
  const int64_t kept = memory.now();
  loss.sum.backward();
  return {kept, memory.peak()};
}

TEST(CheapRecompute, KeepsNoOutputOfANormOrOfGelu) {
  const models::GptOptions options{.layers = 4, .hidden = 64, .seq = 64, .vocab = 32};
  constexpr int64_t kSamples = 8;
  const int64_t tensor = kSamples * options.seq * options.hidden * 4;  // [rows, seq, hidden]
  const Bytes plain = bytes_of<models::Gpt>(options, kSamples, false),
              cheap = bytes_of<models::Gpt>(options, kSamples, true);
  const int64_t gone = options.layers * (2 + 4) * tensor;  // two norms and a GELU of 4 x hidden
  EXPECT_EQ(plain.kept - cheap.kept, gone);
  EXPECT_LE(cheap.peak, plain.peak - gone + 4 * tensor) << "one of them at a time is there again";
}

TEST(CheapRecompute, KeepsNoOutputOfAnRmsNormOrOfSwiGlu) {
  const models::LlamaOptions options{.layers = 4, .hidden = 64, .ffn = 192, .seq = 64, .vocab = 32};
  constexpr int64_t kSamples = 8;
  const int64_t tensor = kSamples * options.seq * options.hidden * 4;
  const Bytes plain = bytes_of<models::Llama>(options, kSamples, false),
              cheap = bytes_of<models::Llama>(options, kSamples, true);
  const int64_t gone = options.layers * (2 + 3) * tensor;  // two norms, and 3 x hidden
  EXPECT_EQ(plain.kept - cheap.kept, gone);
  EXPECT_LE(cheap.peak, plain.peak - gone + 6 * tensor) << "one of them at a time is there again";
}

TEST(CheapRecompute, OnAGpuIn16BitsDiffersOnlyByALastBitOfGelu) {
  NEEDS_GPU();
  const models::GptOptions options{
      .layers = 2, .hidden = 128, .heads = 2, .seq = 128, .vocab = 512, .tie = false};
  const auto tokens = torch::randint(0, options.vocab, {4, options.seq}, torch::kLong).cuda();
  const auto gradients_of = [&](bool cheaply, int64_t& kept) {
    models::Gpt model(options, mesh_of_one());
    nn::initialize(*model, 3);
    nn::move_to(*model, at::kBFloat16, at::kCUDA);
    if (cheaply) nn::recompute_cheaply(*model, nn::WeightsLater::Stay);
    const train::TensorMemory memory;
    const nn::Loss loss = model->loss(tokens, tokens);
    kept = memory.now();
    loss.sum.backward();
    std::map<std::string, at::Tensor> all;
    for (const auto& one : nn::parameters_of(*model))
      all[one.name] = one.tensor.grad().to(at::kDouble);
    return all;
  };
  int64_t kept = 0, kept_cheaply = 0;
  const auto wanted = gradients_of(false, kept), got = gradients_of(true, kept_cheaply);
  const int64_t tensor = tokens.numel() * options.hidden * 2;
  EXPECT_GE(kept - kept_cheaply, options.layers * 6 * tensor);
  // The last block's backward comes before any other's rounding. Its attention may add in another
  // order each time.
  EXPECT_TRUE(got.at("h.1.mlp.c_fc.weight").equal(wanted.at("h.1.mlp.c_fc.weight")))
      << "a norm has the same bits";
  constexpr double kLastBits = 0x1p-7;  // of bfloat16
  for (const auto& [name, gradient] : wanted)
    EXPECT_LE((got.at(name) - gradient).norm().item<double>(),
              kLastBits * gradient.norm().item<double>())
        << name;
}

/// ln -> up, GELU -> down.
struct BranchImpl : nn::LayerImpl {
  BranchImpl() {
    ln = register_module("ln", nn::LayerNorm(6));
    up = register_module("up", nn::Linear(6, 8, nn::LinearImpl::Options{.gelu = true}));
    down = register_module("down", nn::Linear(8, 6));
    nn::initialize(*this, 4);
    to(torch::kDouble);
  }
  nn::Flow compute(const nn::Flow& in) override {
    return down->forward(up->forward(ln->forward(in)));
  }
  nn::LayerNorm ln{nullptr};
  nn::Linear up{nullptr}, down{nullptr};
};

TEST(CheapRecompute, HasTheSecondDerivativesOfPlainLayers) {
  const auto run = [](bool cheaply) {
    BranchImpl branch;
    if (cheaply) nn::recompute_cheaply(branch);
    const auto x = torch::sin(torch::arange(18., torch::kDouble)).view({3, 6}).requires_grad_();
    std::vector<at::Tensor> inputs = branch.parameters();
    inputs.push_back(x);
    const auto first = torch::autograd::grad({branch.forward(nn::Flow(x)).x().pow(2).sum()}, inputs,
                                             {}, true, /*create_graph=*/true);
    at::Tensor penalty = torch::zeros({}, torch::kDouble);
    for (const at::Tensor& one : first) penalty = penalty + one.pow(2).sum();
    return torch::autograd::grad({penalty}, inputs);
  };
  const auto wanted = run(false), got = run(true);
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_LE((got[i] - wanted[i]).abs().max().item<double>(),
              1e-12 * wanted[i].abs().max().item<double>())
        << "input " << i;
}

/// Each layer of the root is a unit: the norm's weights are released when the Linear after it
/// makes the norm's output again.
TEST(CheapRecompute, KeepsCopiesOfWeightsThatAreReleased) {
  const auto make = [](bool cheaply) {
    auto layers = std::make_shared<nn::SequentialImpl>(std::vector<std::shared_ptr<nn::LayerImpl>>{
        nn::LayerNorm(6).ptr(), nn::Linear(6, 8, nn::LinearImpl::Options{.gelu = true}).ptr(),
        nn::Linear(8, 6).ptr()});
    nn::initialize(*layers, 4);
    if (cheaply) nn::recompute_cheaply(*layers);
    return layers;
  };
  run_world(kThreads, 2, [&](const Communicator& world) {
    std::vector<std::vector<at::Tensor>> gradients;
    for (const bool cheaply : {false, true}) {
      const auto layers = make(cheaply);
      parallel::FullySharded sharded(*layers, Mesh(world, {.shard = 2}));
      const auto x = torch::sin(torch::arange(18.)).view({3, 6});
      sharded.backward(
          {layers->forward(nn::Flow(x)).x().pow(2).sum(), at::full({}, 3.0, at::kDouble)});
      sharded.finish();
      gradients.emplace_back();
      for (const auto& one : sharded.shards()) gradients.back().push_back(one.gradient().clone());
    }
    ASSERT_EQ(gradients[0].size(), gradients[1].size());
    for (std::size_t i = 0; i < gradients[0].size(); ++i)
      EXPECT_TRUE(gradients[1][i].equal(gradients[0][i])) << i;
  });
}

}  // namespace
}  // namespace trireme::test
