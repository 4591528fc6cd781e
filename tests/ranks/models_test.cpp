// The models: their first values, their losses, what they see.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <cmath>
#include <set>

#include "models/gpt.h"
#include "support/tiny.h"
#include "trireme/nn/parameters.h"

namespace trireme::test {
namespace {

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

}  // namespace
}  // namespace trireme::test
