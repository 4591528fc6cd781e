// A trained model at work: what it writes does not depend on how it is computed.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "models/gpt.h"
#include "models/llama.h"
#include "models/mlp.h"
#include "support/backends.h"
#include "support/sentence.h"
#include "trireme/core/error.h"
#include "trireme/infer/generate.h"
#include "trireme/infer/measure.h"
#include "trireme/infer/text_stream.h"
#include "trireme/nn/matmul.h"
#include "trireme/nn/parameters.h"

namespace trireme::test {
namespace {

using infer::Decoder;
using infer::Sampler;
using infer::TextStream;
using ::testing::HasSubstr;

constexpr models::GptOptions kGpt{.layers = 2,
                                  .hidden = 32,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .seq = 80,
                                  .vocab = 50,
                                  .sequence = nn::Sequence::Whole};

const models::LlamaOptions kLlama{.layers = 2,
                                  .hidden = 32,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .ffn = 48,
                                  .seq = 80,
                                  .vocab = 50,
                                  .rotary = {.pairs = nn::RotaryPairs::Neighbours,
                                             .scaling = nn::RotaryScaling::Yarn,
                                             .factor = 2,
                                             .trained_on = 40},
                                  .tie = false,
                                  .sequence = nn::Sequence::Whole};

/// The model in float64, with larger weights than training begins with, so that logits differ.
template <class Model>
std::shared_ptr<Model> prepared(std::shared_ptr<Model> model) {
  nn::initialize(*model, 3);
  model->to(at::kDouble);
  for (const nn::Parameter& one : nn::parameters_of(*model)) one.tensor.set_data(one.tensor * 6);
  model->eval();
  return model;
}

std::shared_ptr<models::GptImpl> gpt(const Mesh& mesh) {
  return prepared(std::make_shared<models::GptImpl>(kGpt, mesh));
}

std::vector<std::shared_ptr<nn::ModelImpl>> language_models() {
  return {gpt(mesh_of_one()), prepared(std::make_shared<models::LlamaImpl>(kLlama, mesh_of_one()))};
}

at::Tensor tokens_of(int64_t count) {
  return (torch::arange(count, torch::kLong) * 17 + 3).remainder(kGpt.vocab).view({1, -1});
}

at::Tensor logits_of(nn::ModelImpl& model, const at::Tensor& text) {
  const at::NoGradGuard guard;
  return model.forward(text);
}

TEST(KvCache, GivesTheLogitsOfTheWholeText) {
  const at::Tensor text = tokens_of(78);
  for (const auto& model : language_models()) {
    const at::Tensor all = logits_of(*model, text);  // [1, 78, vocab], without a cache
    for (const int64_t prompt : {1, 5, 63, 64, 65, 78}) {
      Decoder decoder(model);
      for (int64_t i = 0; i < 78;) {
        const int64_t count = i == 0 ? prompt : 1;
        const at::Tensor logits = decoder.feed(text.narrow(1, i, count));
        i += count;
        EXPECT_TRUE(torch::allclose(logits, all.select(1, i - 1), 1e-11, 1e-11)) << i;
      }
    }
    EXPECT_TRUE(torch::equal(logits_of(*model, text), all)) << "the caches are gone";
  }
}

TEST(KvCache, TakesSeveralPositionsAtOnceAnywhere) {
  const at::Tensor text =
      tokens_of(70).repeat({3, 1}).remainder(40) + torch::arange(3).view({3, 1});
  for (const auto& model : language_models()) {
    const at::Tensor all = logits_of(*model, text);
    Decoder decoder(model);
    for (const int round : {1, 2}) {
      int64_t i = 0;
      for (const int64_t count : {7, 1, 20, 2, 40}) {
        const at::Tensor logits = decoder.feed(text.narrow(1, i, count));
        i += count;
        EXPECT_TRUE(torch::allclose(logits, all.select(1, i - 1), 1e-11, 1e-11))
            << "round " << round << ", position " << i;
      }
      decoder.restart();
    }
  }
}

/// gpt, and llama with and without tables of positions that depend on the length of the text.
TEST(KvCache, AttendsAtAPositionThatIsATensor) {
  const at::Tensor text = tokens_of(78);
  for (const auto& model : language_models()) {
    const at::NoGradGuard guard;
    const at::Tensor all = logits_of(*model, text);
    nn::KvCaches caches(model);
    ASSERT_TRUE(caches.may_move());
    model->forward(text.narrow(1, 0, 60));
    const int64_t moves = caches.moves();
    caches.reserve(70);
    EXPECT_EQ(caches.moves(), moves + 1) << "64 positions were there";
    for (int64_t i = 60; i < 78; ++i) {
      if (i == 75) {  // as it is, in between
        const auto plain =
            std::make_shared<const nn::Where>(nn::Where{.positions = Positions::from(i)});
        const at::Tensor y = model->forward(nn::Flow(text.narrow(1, i, 1), plain)).x();
        EXPECT_TRUE(torch::allclose(y[0][0], all[0][i], 1e-11, 1e-11)) << i;
        continue;
      }
      // Only the tensor says where it is.
      const auto where = std::make_shared<const nn::Where>(nn::Where{.moving = at::tensor({i})});
      const at::Tensor y = model->forward(nn::Flow(text.narrow(1, i, 1), where)).x();
      caches.grown_to(i + 1);
      EXPECT_TRUE(torch::allclose(y[0][0], all[0][i], 1e-11, 1e-11)) << i;
    }
  }
}

TEST(KvCache, SaysWhichModelsDependOnTheLength) {
  models::LlamaOptions options = kLlama;
  options.rotary.scaling = nn::RotaryScaling::Dynamic;
  const auto model = prepared(std::make_shared<models::LlamaImpl>(options, mesh_of_one()));
  EXPECT_FALSE(nn::KvCaches(model).may_move());
}

TEST(Decoder, RepeatsItsStepsOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  const at::Tensor text = tokens_of(78);
  for (const auto& model : language_models()) {
    const at::Tensor all = logits_of(*model, text);
    model->to(at::Device(at::kCUDA, 0));
    Decoder decoder(model);
    decoder.repeat_steps(70);  // the rest as it is
    for (const int64_t prompt : {3, 60, 1}) {
      decoder.restart();
      for (int64_t i = 0; i < 78;) {
        const int64_t count = i == 0 ? prompt : 1;
        const at::Tensor logits = decoder.feed(text.narrow(1, i, count)).cpu();
        i += count;
        EXPECT_TRUE(torch::allclose(logits, all.select(1, i - 1), 1e-11, 1e-11))
            << "prompt " << prompt << ", position " << i;
      }
    }
  }
}

TEST(Decoder, RefusesAModelThatAnotherOneUses) {
  const auto model = gpt(mesh_of_one());
  const Decoder first(model);
  EXPECT_THAT(outcome_of<MisuseError>([&] { const Decoder second(model); }),
              HasSubstr("has key-value caches already"));
}

TEST(Decoder, RefusesAModelThatDoesNotAttend) {
  const auto mlp = std::make_shared<models::MlpImpl>(models::MlpOptions{}, mesh_of_one());
  EXPECT_THAT(outcome_of<ConfigError>([&] { Decoder decoder(mlp); }),
              HasSubstr("this model cannot write a text"));
}

TEST(KvCache, RefusesAGap) {
  const auto model = gpt(mesh_of_one());
  const nn::KvCaches caches(model);
  const at::NoGradGuard guard;
  const auto at = std::make_shared<const nn::Where>(nn::Where{.positions = Positions::from(5)});
  EXPECT_THAT(outcome_of<MisuseError>([&] { model->forward(nn::Flow(tokens_of(2), at)); }),
              HasSubstr("positions 5 to 7 were asked for, but the cache ends at 0"));
}

/// The text that a sampler writes on a mesh of `tensor` ranks.
std::vector<int64_t> written(const comm::Communicator& world, int tensor,
                             const infer::SamplerOptions& sampling) {
  const Mesh mesh(world, {.tensor = tensor});
  Decoder decoder(gpt(mesh));
  std::vector<int64_t> text;
  const auto end = infer::generate(decoder, mesh.group(Axis::Tensor), {4, 5, 6},
                                   {.tokens = 60, .sampling = sampling, .seq = kGpt.seq},
                                   [&](int64_t token) { text.push_back(token); });
  EXPECT_EQ(end, infer::End::Tokens);
  return text;
}

TEST(Generate, WritesTheSameTextOnAnyMesh) {
  const infer::SamplerOptions all[] = {{.temperature = 0},
                                       {.temperature = 1, .seed = 7},
                                       {.temperature = 1.5, .top_p = 0.8, .seed = 8}};
  std::vector<std::vector<int64_t>> alone;
  for (const auto& sampling : all) alone.push_back(written(mesh_of_one().world(), 1, sampling));
  EXPECT_NE(alone[0], alone[1]);
  EXPECT_NE(alone[1], alone[2]);
  for (const int ranks : {2, 4})
    run_world(kThreads, ranks, [&](const comm::Communicator& world) {
      at::set_num_threads(1);
      for (std::size_t i = 0; i < std::size(all); ++i)
        EXPECT_EQ(written(world, ranks, all[i]), alone[i]) << ranks << " ranks, sampler " << i;
    });
}

TEST(Generate, EndsWithTheLastTokenAndWithThePositions) {
  const Mesh mesh = mesh_of_one();
  Decoder decoder(gpt(mesh));
  std::vector<int64_t> all;
  const auto collect = [&](int64_t token) { all.push_back(token); };
  const infer::GenerateOptions greedy{
      .tokens = 1000, .sampling = {.temperature = 0}, .seq = kGpt.seq};
  EXPECT_EQ(infer::generate(decoder, mesh.world(), {4, 5, 6}, greedy, collect),
            infer::End::Positions);
  EXPECT_EQ(all.size(), 78u) << "80 positions, and the token after the last of them";
  decoder.restart();
  auto until = greedy;
  until.last = {99, all[20]};
  const auto first = std::ranges::find(all, all[20]) - all.begin();
  std::vector<int64_t> some;
  EXPECT_EQ(infer::generate(decoder, mesh.world(), {4, 5, 6}, until,
                            [&](int64_t token) { some.push_back(token); }),
            infer::End::LastToken);
  EXPECT_EQ(some, std::vector<int64_t>(all.begin(), all.begin() + first));
  decoder.restart();
  EXPECT_EQ(outcome_of<ConfigError>([&] {
              infer::generate(decoder, mesh.world(), std::vector<int64_t>(81, 1), greedy, collect);
            }),
            "the prompt has 81 tokens, and the model has 80 positions");
}

TEST(Sampler, DrawsAsOftenAsTheLogitsSay) {
  const std::vector<double> logits = {0, 1, 2, -1, 2};
  double sum = 0;
  for (const double one : logits) sum += std::exp(one / 0.7);
  Sampler sampler({.temperature = 0.7, .seed = 5});
  constexpr int kDraws = 40'000;
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<std::size_t>(sampler.pick(logits, i))];
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double chance = std::exp(logits[i] / 0.7) / sum;
    const double deviation = std::sqrt(chance * (1 - chance) / kDraws);
    EXPECT_NEAR(counts[i] / double{kDraws}, chance, 5 * deviation) << i;
  }
}

TEST(Sampler, TopPKeepsTheFewestTokensOfThatProbability) {
  const std::vector<double> logits = {std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.3)};
  Sampler sampler({.top_p = 0.65, .seed = 5});
  std::vector<int> counts(4);
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<std::size_t>(sampler.pick(logits, i))];
  EXPECT_EQ(counts[0] + counts[2], 0) << "0.4 + 0.3 are enough";
  EXPECT_NEAR(counts[1] / double{kDraws}, 4. / 7, 0.02);
  Sampler one({.top_p = 1e-9, .seed = 5});
  for (int i = 0; i < 100; ++i) EXPECT_EQ(one.pick(logits, i), 1);
}

TEST(Sampler, IsAFunctionOfSeedAndPosition) {
  Sampler a({.seed = 1}), again({.seed = 1}), other({.seed = 2});
  int differences = 0;
  for (int64_t position = 0; position < 100; ++position) {
    EXPECT_EQ(a.uniform(position), again.uniform(position));
    EXPECT_GE(a.uniform(position), 0);
    EXPECT_LT(a.uniform(position), 1);
    differences += a.uniform(position) != other.uniform(position);
  }
  EXPECT_EQ(differences, 100);
  EXPECT_EQ(Sampler({.temperature = 0}).pick(std::vector<double>{1, 3, 3, 2}, 0), 1)
      << "the first of equals";
  EXPECT_THAT(outcome_of<Error>([&] {
                a.pick(std::vector<double>{1, std::nan("")}, 9);
              }),
              HasSubstr("the model gives nan for the token at position 9"));
  EXPECT_THAT(outcome_of<Error>([&] {
                a.pick(std::vector<double>{1, std::numeric_limits<double>::infinity()}, 9);
              }),
              HasSubstr("the model gives inf for the token at position 9"));
}

TEST(TextStream, HandsOnWholeCharacters) {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";  // aé€😀z
  for (std::size_t first = 0; first <= text.size(); ++first)
    for (std::size_t second = first; second <= text.size(); ++second) {
      TextStream stream(TextStream::Invalid::Replace);
      std::string all;
      for (const auto& part :
           {text.substr(0, first), text.substr(first, second - first), text.substr(second)}) {
        const std::string ready = stream.push(part);
        EXPECT_TRUE(ready.empty() || (static_cast<unsigned char>(ready[0]) & 0xc0) != 0x80)
            << "begins inside of a character";
        all += ready;
      }
      EXPECT_EQ(all + stream.end(), text);
    }
}

TEST(TextStream, ReplacesOrKeepsWhatIsNoCharacter) {
  const std::string_view bad = "a\xff\xc3(\xed\xa0\x80\xe2\x82";  // a surrogate, and a cut one
  TextStream replaces(TextStream::Invalid::Replace), keeps(TextStream::Invalid::Keep);
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(replaces.push(bad), "a" + r + r + "(" + r + r + r);
  EXPECT_EQ(replaces.end(), r);
  std::string all = keeps.push(bad);
  EXPECT_EQ(all + keeps.end(), bad);
}

TEST(Matvec, GivesTheProductOfASingleRow) {
  torch::manual_seed(1);
  for (const int64_t width : {1, 3, 15, 16, 17, 63, 64, 65, 100, 768, 3072})
    for (const int64_t rows : {1, 2, 7, 1000}) {
      const at::Tensor weight = torch::randn({rows, width}), x = torch::randn({1, width});
      const at::Tensor bias = torch::randn({rows}), more = torch::randn({1, rows});
      const at::Tensor wanted =
          torch::matmul(x.to(torch::kDouble), weight.to(torch::kDouble).t()) + bias + more;
      const at::Tensor y = nn::product(x, weight, bias, more);
      // A sum of n products of numbers about 1 is off by some sqrt(n) roundings.
      const double allowed = 1e-6 * std::sqrt(static_cast<double>(width)) + 1e-6;
      EXPECT_LT((y - wanted).abs().max().item<double>(), 4 * allowed) << rows << " x " << width;
    }
}

struct FewTexts : data::Dataset {
  int64_t size() const override { return 11; }
  data::Sample get(int64_t i) const override {
    const auto all = (torch::arange(21, torch::kLong) * (2 * i + 1) + i).remainder(kGpt.vocab);
    auto target = all.narrow(0, 1, 20).clone();
    target.narrow(0, 0, i % 5).fill_(-100);  // does not count
    return {all.narrow(0, 0, 20).clone(), target};
  }
};

TEST(Measure, IsTheLossAndTheShareOfLikeliestTokensOnAnyMesh) {
  const FewTexts texts;
  const auto model = gpt(mesh_of_one());
  double loss = 0;
  int64_t counted = 0, correct = 0;
  for (int64_t i = 0; i < texts.size(); ++i) {
    const at::NoGradGuard guard;
    const auto sample = texts.get(i);
    const at::Tensor logits = model->forward(sample.input.unsqueeze(0))[0];
    loss += torch::nn::functional::cross_entropy(
                logits, sample.target,
                torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum))
                .item<double>();
    counted += (sample.target >= 0).sum().item<int64_t>();
    correct += logits.argmax(-1).eq(sample.target).sum().item<int64_t>();
  }
  const auto compare = [&](const comm::Communicator& world, const Degrees& degrees) {
    const Mesh mesh(world, degrees);
    const auto measured =
        infer::measure(*gpt(mesh), texts, mesh, {.rows = 3, .classes = kGpt.vocab});
    EXPECT_NEAR(measured.loss_sum, loss, 1e-9 * loss);
    EXPECT_EQ(measured.targets, counted);
    EXPECT_EQ(measured.correct, correct);
    EXPECT_EQ(measured.samples, texts.size());
    EXPECT_EQ(measured.confusions.sum().item<int64_t>(), counted);
    EXPECT_EQ(measured.confusions.diagonal().sum().item<int64_t>(), correct);
  };
  compare(mesh_of_one().world(), {});
  run_world(kThreads, 4, [&](const comm::Communicator& world) {
    at::set_num_threads(1);
    compare(world, {.replica = 2, .tensor = 2});
    compare(world, {.replica = 4});
  });
}

}  // namespace
}  // namespace trireme::test
