// Layers, losses, models, optimizers and the order of samples, against torch and against the rule
// that chance depends on logical coordinates only.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <cmath>
#include <set>

#include "models/gpt.h"
#include "models/mlp.h"
#include "trireme/comm/local/local.h"
#include "trireme/core/error.h"
#include "trireme/data/loader.h"
#include "trireme/data/markov.h"
#include "trireme/nn/gelu.h"
#include "trireme/nn/matmul.h"
#include "trireme/nn/parameters.h"
#include "trireme/nn/recompute.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/schedule.h"

namespace trireme::test {
namespace {

using nn::Flow;
using nn::Where;

std::shared_ptr<const Where> where(std::vector<int64_t> ids, int64_t step = 3, int64_t begin = 0) {
  return std::make_shared<Where>(
      Where{.step = step, .micro = 0, .sample_ids = std::move(ids), .seq_begin = begin});
}

Mesh mesh_of_one() {
  return {comm::Communicator("world", comm::make_local(comm::make_local_hub(1), 0)), Degrees{}};
}

TEST(Initialisation, IsAFunctionOfSeedNameAndElement) {
  models::Gpt small(
      models::GptOptions{.layers = 2, .hidden = 16, .heads = 2, .seq = 8, .vocab = 32},
      mesh_of_one());
  models::Gpt more(
      models::GptOptions{.layers = 2, .hidden = 16, .heads = 2, .seq = 16, .vocab = 32},
      mesh_of_one());
  nn::initialize(*small, 7);
  nn::initialize(*more, 7);
  const auto a = small->named_parameters(), b = more->named_parameters();
  EXPECT_TRUE(a["h.1.attn.c_attn.weight"].equal(b["h.1.attn.c_attn.weight"]));
  EXPECT_TRUE(a["wpe.weight"].equal(b["wpe.weight"].narrow(0, 0, 8)))
      << "element i does not depend on how many there are";
  EXPECT_FALSE(a["h.0.attn.c_attn.weight"].equal(a["h.1.attn.c_attn.weight"]));
  nn::initialize(*more, 8);
  EXPECT_FALSE(a["wte.weight"].equal(b["wte.weight"]));
}

TEST(Initialisation, HasGpt2sDeviations) {
  models::Gpt model(
      models::GptOptions{.layers = 2, .hidden = 128, .heads = 2, .seq = 512, .vocab = 2048},
      mesh_of_one());
  nn::initialize(*model, 1);
  const auto p = model->named_parameters();
  const auto deviation = [&](const char* name) { return p[name].std().item<double>(); };
  EXPECT_NEAR(deviation("wte.weight"), 0.02, 2e-4);
  EXPECT_NEAR(deviation("wpe.weight"), 0.01, 2e-4);
  EXPECT_NEAR(deviation("h.0.mlp.c_fc.weight"), 0.02, 3e-4);
  EXPECT_NEAR(deviation("h.0.mlp.c_proj.weight"), 0.01, 2e-4) << "0.02 / sqrt(2 x 2)";
  EXPECT_EQ(p["h.0.ln_1.weight"].min().item<float>(), 1);
  EXPECT_EQ(p["h.0.attn.c_attn.bias"].abs().max().item<float>(), 0);
  EXPECT_NEAR(p["wte.weight"].mean().item<double>(), 0, 2e-4);
}

TEST(Dropout, DependsOnStepAndSampleAndNotOnTheCutOfTheBatch) {
  nn::Sequential model(std::vector<std::shared_ptr<nn::LayerImpl>>{
      std::make_shared<nn::DropoutImpl>(0.4), std::make_shared<nn::DropoutImpl>(0.4)});
  nn::initialize(*model, 5);
  const auto x = torch::ones({4, 6, 5});
  const auto whole = model->forward(Flow(x, where({10, 11, 12, 13}))).x();
  const auto part = model->forward(Flow(x.narrow(0, 2, 2), where({12, 13}))).x();
  EXPECT_TRUE(part.equal(whole.narrow(0, 2, 2)));
  const auto tail = model->forward(Flow(x.narrow(1, 4, 2), where({10, 11, 12, 13}, 3, 4))).x();
  EXPECT_TRUE(tail.equal(whole.narrow(1, 4, 2))) << "a part of the sequence";
  EXPECT_FALSE(model->forward(Flow(x, where({10, 11, 12, 13}, 4))).x().equal(whole));
  EXPECT_FALSE(whole[0].equal(whole[1]));
}

TEST(Dropout, DropsAsOftenAsAskedAndKeepsTheMean) {
  nn::Dropout layer(0.25);
  nn::initialize(*layer, 1);
  const auto y =
      layer->forward(Flow(torch::ones({8, 100, 100}), where({0, 1, 2, 3, 4, 5, 6, 7}))).x();
  EXPECT_NEAR((y == 0).to(torch::kDouble).mean().item<double>(), 0.25, 0.005);
  EXPECT_NEAR(y.mean().item<double>(), 1, 0.01);
  layer->eval();
  EXPECT_TRUE(layer->forward(torch::ones({3})).equal(torch::ones({3})));
}

TEST(Dropout, WithoutKnowingItsSamplesIsAnError) {
  nn::Dropout layer(0.5);
  nn::initialize(*layer, 1);
  EXPECT_THROW(layer->forward(torch::ones({2, 3})), MisuseError);
  EXPECT_THROW(layer->forward(Flow(torch::ones({2, 3}), where({1}))), MisuseError);
}

/// One tensor in, one out, and how often it was computed.
struct CountedImpl : nn::LayerImpl {
  at::Tensor compute(const at::Tensor& x, const Where*) override {
    ++computed;
    return torch::sin(x);
  }
  using LayerImpl::compute;
  int computed = 0;
};

TEST(Seam, RunsHooksFromTheOutsideInWhateverTheOrderOfAttaching) {
  CountedImpl layer;
  std::string heard;
  const auto hear = [&](std::string name) {
    return [&heard, name](Flow in, const nn::LayerImpl::Call& inner) {
      heard += name + "(";
      Flow out = inner(std::move(in));
      heard += ")";
      return out;
    };
  };
  layer.around(nn::Seam::Unshard, hear("unshard"));
  layer.around(nn::Seam::Profile, hear("profile"));
  layer.around(nn::Seam::Recompute, hear("recompute"));
  layer.forward(torch::ones({2}));
  EXPECT_EQ(heard, "profile(recompute(unshard()))");
}

TEST(Seam, TakesAnyTorchModule) {
  torch::nn::Linear linear(3, 2);
  const auto layer = nn::as_layer(linear);
  EXPECT_TRUE(layer->forward(torch::ones({1, 3})).equal(linear(torch::ones({1, 3}))));
  EXPECT_TRUE(layer->named_parameters().contains("module.weight"));
}

struct Outcome {
  at::Tensor loss;
  std::vector<at::Tensor> gradients;
};

Outcome run(models::Gpt& model, const Flow& tokens, const at::Tensor& targets) {
  model->zero_grad();
  const nn::Loss loss = model->loss(tokens, targets);
  loss.sum.backward();
  Outcome result{loss.sum.detach(), {}};
  for (const auto& p : nn::parameters_of(*model))
    result.gradients.push_back(p.tensor.grad().clone());
  return result;
}

TEST(Recompute, GivesTheSameBitsWithDropoutAndNested) {
  const models::GptOptions options{.layers = 3,
                                   .hidden = 16,
                                   .heads = 2,
                                   .seq = 8,
                                   .vocab = 32,
                                   .dropout = 0.2,
                                   .attention_dropout = 0.1};
  const auto tokens = torch::randint(0, 32, {2, 8}, torch::kLong);
  const Flow flow(tokens, where({5, 9}));
  const Mesh mesh = mesh_of_one();
  models::Gpt plain(options, mesh), blocks(options, mesh), nested(options, mesh);
  for (auto* model : {&plain, &blocks, &nested}) nn::initialize(**model, 3);
  for (const auto& block : blocks->blocks()) nn::recompute(*block);
  for (const auto& block : nested->blocks()) nn::recompute(*block);
  for (const auto& attention : nested->attentions()) nn::recompute(*attention);
  const Outcome expected = run(plain, flow, tokens);
  for (auto* model : {&blocks, &nested}) {
    const Outcome got = run(*model, flow, tokens);
    EXPECT_TRUE(got.loss.equal(expected.loss));
    for (std::size_t i = 0; i < expected.gradients.size(); ++i)
      EXPECT_TRUE(got.gradients[i].equal(expected.gradients[i])) << i;
  }
}

TEST(Recompute, ComputesTwiceOnlyWhereAGradientIsWanted) {
  CountedImpl layer;
  nn::recompute(layer);
  layer.forward(torch::ones({2}, torch::requires_grad())).sum().backward();
  EXPECT_EQ(layer.computed, 2);
  const torch::NoGradGuard guard;
  layer.forward(torch::ones({2}));
  EXPECT_EQ(layer.computed, 3);
}

TEST(Gelu, IsTorchsInValueAndGradient) {
  const auto x = torch::cat({torch::linspace(-20, 20, 4001), torch::tensor({-1e4f, 1e4f, 0.0f})})
                     .requires_grad_();
  const auto y = nn::gelu_tanh(x);
  y.sum().backward();
  const auto exact = x.detach().to(torch::kDouble).requires_grad_();
  const auto expected = torch::gelu(exact, "tanh");
  expected.sum().backward();
  EXPECT_LE((y - expected).abs().div(1 + expected.abs()).max().item<double>(), 3e-7);
  // Float32 loses digits where the slope's terms cancel, torch's own too: no worse than twice that.
  const auto plain = x.detach().clone().requires_grad_();
  torch::gelu(plain, "tanh").sum().backward();
  const double torchs = (plain.grad() - exact.grad()).abs().max().item<double>();
  EXPECT_LE((x.grad() - exact.grad()).abs().max().item<double>(), 2 * torchs);
  EXPECT_TRUE(nn::gelu_tanh(torch::tensor({std::nanf("")})).isnan().item<bool>());
  EXPECT_EQ(nn::gelu_tanh(torch::empty({0, 3})).numel(), 0);
}

TEST(Linear, IsTorchsInValueAndGradient) {
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    torch::manual_seed(1);
    const auto options = torch::TensorOptions(dtype).requires_grad(true);
    const auto x = torch::randn({3, 17, 9}, options), w = torch::randn({21, 9}, options),
               b = torch::randn({21}, options);
    const auto weights = torch::randn({3, 17, 21}, dtype);
    (nn::linear(x, w, b) * weights).sum().backward();
    const std::vector<at::Tensor> ours = {x.grad().clone(), w.grad().clone(), b.grad().clone()};
    for (const auto& tensor : {x, w, b}) tensor.mutable_grad().zero_();
    (torch::linear(x, w, b) * weights).sum().backward();
    const std::vector<at::Tensor> theirs = {x.grad(), w.grad(), b.grad()};
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_TRUE(torch::allclose(ours[i], theirs[i], 1e-5, 1e-5)) << i << " " << dtype;
    EXPECT_TRUE(torch::allclose(nn::linear(x, w, {}), torch::linear(x, w), 1e-5, 1e-5));
    EXPECT_TRUE(torch::allclose(nn::product(w, x.flatten(0, 1)), torch::mm(w, x.flatten(0, 1).t()),
                                1e-5, 1e-5));
    EXPECT_EQ(nn::linear(x.narrow(0, 0, 0), w, b).sizes(), (std::vector<int64_t>{0, 17, 21}));
  }
}

TEST(LinearCrossEntropy, EqualsTheTwoOperationsInValueAndGradient) {
  for (const int64_t rows : {0, 1, 37, 700}) {
    torch::manual_seed(rows);
    const auto x = torch::randn({rows, 5}, torch::kDouble).requires_grad_();
    const auto w = torch::randn({3000, 5}, torch::kDouble).requires_grad_();
    auto targets = torch::randint(0, 3000, {rows}, torch::kLong);
    if (rows > 3) targets.narrow(0, 1, 2).fill_(nn::kIgnored);
    const auto fused = nn::linear_cross_entropy(x, w, targets);
    (fused.sum * 0.5).backward();
    const auto dx = x.grad().clone(), dw = w.grad().clone();
    x.mutable_grad().zero_();
    w.mutable_grad().zero_();
    const auto plain = nn::cross_entropy(torch::matmul(x, w.t()), targets);
    (plain.sum * 0.5).backward();
    EXPECT_NEAR(fused.sum.item<double>(), plain.sum.item<double>(), 1e-10 * (1 + rows));
    EXPECT_EQ(fused.weight.item<double>(), plain.weight.item<double>());
    EXPECT_TRUE(torch::allclose(dx, x.grad(), 1e-11, 1e-13));
    EXPECT_TRUE(torch::allclose(dw, w.grad(), 1e-11, 1e-13));
  }
}

TEST(LinearCrossEntropy, SurvivesChancesThatUnderflow) {
  const auto x = torch::tensor({{200.0f}}), w = torch::tensor({{1.0f}, {0.0f}});
  EXPECT_FLOAT_EQ(nn::linear_cross_entropy(x, w, torch::tensor({1})).sum.item<float>(), 200);
}

TEST(LinearCrossEntropy, NamesATargetThatIsNoClass) {
  const auto x = torch::ones({1, 2}), w = torch::ones({3, 2});
  for (const int64_t bad : {3, -1}) {
    EXPECT_THROW(nn::linear_cross_entropy(x, w, torch::tensor({bad})), Error);
    EXPECT_THROW(nn::cross_entropy(torch::ones({1, 3}), torch::tensor({bad})), Error);
  }
}

TEST(Gpt, GivesTheLossOfItsLogits) {
  for (const bool tie : {true, false}) {
    models::Gpt model(models::GptOptions{.layers = 2,
                                         .hidden = 16,
                                         .heads = 4,
                                         .kv_heads = 2,
                                         .seq = 8,
                                         .vocab = 32,
                                         .tie = tie},
                      mesh_of_one());
    nn::initialize(*model, 1);
    model->to(torch::kDouble);
    const auto tokens = torch::randint(0, 32, {3, 8}, torch::kLong);
    const auto loss = model->loss(tokens, tokens);
    const auto plain = nn::cross_entropy(model->forward(tokens), tokens);
    EXPECT_NEAR(loss.sum.item<double>(), plain.sum.item<double>(), 1e-10);
    EXPECT_EQ(loss.weight.item<double>(), 24);
    const auto none = model->loss(tokens.narrow(0, 0, 0), tokens.narrow(0, 0, 0));
    none.sum.backward();
    EXPECT_EQ(none.weight.item<double>(), 0) << "no rows go through all layers";
  }
}

TEST(Gpt, SeesOnlyThePast) {
  models::Gpt model(
      models::GptOptions{.layers = 2, .hidden = 16, .heads = 2, .seq = 8, .vocab = 32},
      mesh_of_one());
  nn::initialize(*model, 1);
  const auto tokens = torch::randint(0, 32, {1, 8}, torch::kLong);
  auto other = tokens.clone();
  other[0][5] = (other[0][5] + 1) % 32;
  const auto a = model->forward(tokens), b = model->forward(other);
  EXPECT_TRUE(a.narrow(1, 0, 5).equal(b.narrow(1, 0, 5)));
  EXPECT_FALSE(a.narrow(1, 5, 1).equal(b.narrow(1, 5, 1)));
}

std::vector<optim::Slot> slots_of(torch::nn::Module& module) {
  std::vector<optim::Slot> slots;
  for (const auto& item : module.named_parameters())
    slots.push_back({item.key(), item.value(), optim::is_decayed(item.value())});
  return slots;
}

TEST(Optimizers, GiveTorchsNumbers) {
  for (const bool adam : {true, false}) {
    torch::manual_seed(1);
    torch::nn::Linear ours(33, 7), theirs(33, 7);
    ours->to(torch::kDouble);
    theirs->to(torch::kDouble);
    {
      const torch::NoGradGuard guard;
      theirs->weight.copy_(ours->weight);
      theirs->bias.copy_(ours->bias);
    }
    auto mine =
        adam ? optim::make_adamw(slots_of(*ours), {}) : optim::make_sgd(slots_of(*ours), {});
    std::unique_ptr<torch::optim::Optimizer> torchs;
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (const auto& p : {theirs->weight, theirs->bias}) {
      const double decay = p.dim() >= 2 ? 0.1 : 0;
      std::unique_ptr<torch::optim::OptimizerOptions> options;
      if (adam)
        options = std::make_unique<torch::optim::AdamWOptions>(
            torch::optim::AdamWOptions(0.01).betas({0.9, 0.95}).weight_decay(decay));
      else
        options = std::make_unique<torch::optim::SGDOptions>(
            torch::optim::SGDOptions(0.01).momentum(0.9));
      groups.emplace_back(std::vector<at::Tensor>{p}, std::move(options));
    }
    if (adam)
      torchs = std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(0.01));
    else
      torchs = std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.01));
    for (int step = 0; step < 10; ++step) {
      const auto x = torch::randn({4, 33}, torch::kDouble);
      ours->zero_grad();
      theirs->zero_grad();
      (ours(x).pow(2).sum() * 12).backward();
      theirs(x).pow(2).sum().backward();
      mine->step(0.01, /*divisor=*/12);
      torchs->step();
    }
    EXPECT_TRUE(torch::allclose(ours->weight, theirs->weight, 1e-12, 1e-14)) << adam;
    EXPECT_TRUE(torch::allclose(ours->bias, theirs->bias, 1e-12, 1e-14)) << adam;
  }
}

TEST(Optimizers, LeaveAloneWhatHasNoGradient) {
  torch::nn::Linear model(3, 2);
  auto adam = optim::make_adamw(slots_of(*model), {});
  const auto bias = model->bias.clone();
  model->weight.mutable_grad() = torch::ones({2, 3});
  adam->step(0.1);
  EXPECT_TRUE(model->bias.equal(bias));
  EXPECT_EQ(adam->steps(), (std::vector<int64_t>{1, 0}));
}

TEST(Clipping, IsTorchs) {
  torch::nn::Linear model(9, 4);
  model(torch::randn({5, 9})).pow(2).sum().backward();
  const double norm = optim::gradient_norm(slots_of(*model));
  auto expected = model->weight.grad() / optim::clip_divisor(norm, 0.5);
  const double torchs = torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5);
  EXPECT_NEAR(norm, torchs, 1e-5 * torchs);
  EXPECT_TRUE(torch::allclose(model->weight.grad(), expected, 1e-5));
  EXPECT_EQ(optim::clip_divisor(3, 0), 1);
}

TEST(Schedule, WarmsUpAndEndsWhereItShould) {
  using optim::Schedule;
  const Schedule cosine{
      .kind = Schedule::Kind::Cosine, .peak = 2, .warmup = 4, .steps = 104, .final = 0.1};
  EXPECT_DOUBLE_EQ(cosine.at(1), 0.5);
  EXPECT_DOUBLE_EQ(cosine.at(4), 2);
  EXPECT_DOUBLE_EQ(cosine.at(54), 0.2 + 0.9);
  EXPECT_DOUBLE_EQ(cosine.at(104), 0.2);
  EXPECT_DOUBLE_EQ(cosine.at(1000), 0.2);
  const Schedule line{
      .kind = Schedule::Kind::Linear, .peak = 1, .warmup = 0, .steps = 10, .final = 0};
  EXPECT_DOUBLE_EQ(line.at(5), 0.5);
  const Schedule flat{.kind = Schedule::Kind::Constant, .peak = 3, .warmup = 0, .steps = 10};
  EXPECT_DOUBLE_EQ(flat.at(9), 3);
}

TEST(Order, IsAPermutationOfEveryEpochAndTheSameForEveryWorld) {
  for (const int64_t samples : {1, 2, 3, 17, 64, 1000}) {
    const data::Order order(3, samples, 7);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<int64_t> seen;
      for (int64_t b = 0; b < order.batches_per_epoch(); ++b) {
        const int64_t number = epoch * order.batches_per_epoch() + b;
        const auto batch = order.batch(number);
        for (const int size : {2, 3, 5, 11}) {
          std::vector<int64_t> joined;
          for (int rank = 0; rank < size; ++rank) {
            const auto block = order.block(number, rank, size);
            EXPECT_LE(static_cast<int64_t>(block.size()), order.largest_block(number, size));
            joined.insert(joined.end(), block.begin(), block.end());
          }
          EXPECT_EQ(joined, batch);
        }
        seen.insert(seen.end(), batch.begin(), batch.end());
      }
      std::sort(seen.begin(), seen.end());
      ASSERT_EQ(static_cast<int64_t>(seen.size()), samples);
      for (int64_t i = 0; i < samples; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
    }
    if (samples > 64) {
      EXPECT_NE(order.batch(0), order.batch(order.batches_per_epoch()));
    }
  }
}

TEST(Markov, HasTheEntropyThatItSays) {
  const data::Markov language({.vocab = 64, .seq = 2000, .samples = 40, .seed = 3});
  double nats = 0, count = 0;
  for (int64_t i = 0; i < language.size(); ++i) {
    const auto sample = language.get(i);
    const auto* input = sample.input.data_ptr<int64_t>();
    const auto* target = sample.target.data_ptr<int64_t>();
    for (int64_t t = 1; t < 2000; ++t, ++count)
      nats -= std::log(language.chance(static_cast<int>(input[t - 1] % 16),
                                       static_cast<int>(input[t] % 16),
                                       static_cast<int>(target[t] % 16)) *
                       language.chance_in_class(target[t]));
  }
  EXPECT_NEAR(nats / count, *language.floor(), 0.02) << "the mean surprise of 80000 tokens";
  EXPECT_LT(*language.floor(), std::log(64) - 0.5);
}

TEST(Markov, OfAnOddOrTinyVocabularyIsALanguageToo) {
  for (const int64_t vocab : {2, 3, 16, 17, 50257}) {
    const data::Markov language({.vocab = vocab, .seq = 64, .samples = 3, .seed = 1});
    const auto sample = language.get(2);
    EXPECT_LT(sample.input.max().item<int64_t>(), vocab);
    EXPECT_TRUE(sample.input.narrow(0, 1, 63).equal(sample.target.narrow(0, 0, 63)));
    EXPECT_GT(*language.floor(), 0);
    EXPECT_LT(*language.floor(), std::log(vocab));
  }
}

TEST(Loader, GivesBlocksInOrderAndErrorsWithTheirBatch) {
  struct Counting : data::Dataset {
    int64_t size() const override { return 10; }
    data::Sample get(int64_t i) const override {
      if (i == bad) throw Error("sample 4 is damaged");
      return {torch::tensor({i}), torch::tensor({i})};
    }
    int64_t bad = -1;
  };
  const auto dataset = std::make_shared<Counting>();
  const data::Order order(1, 10, 4);
  data::Loader loader(dataset, order, 1, 3, /*first=*/1);
  for (int64_t number = 1; number < 8; ++number) {
    const auto batch = loader.next();
    EXPECT_EQ(batch.number, number);
    EXPECT_EQ(batch.sample_ids, order.block(number, 1, 3));
    EXPECT_EQ(batch.inputs.size(0), static_cast<int64_t>(batch.sample_ids.size()));
  }
  const auto broken = std::make_shared<Counting>();
  broken->bad = 4;
  data::Loader failing(broken, order, 0, 1, 0);
  EXPECT_THROW(for (int i = 0; i < 3; ++i) failing.next(), Error);
}

}  // namespace
}  // namespace trireme::test
