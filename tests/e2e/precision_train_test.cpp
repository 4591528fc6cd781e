// `trireme train` in 16 bits: the losses and the skipped steps of PyTorch, a run that is killed
// while it overflows, and the memory that --check foretells.
#include <gmock/gmock.h>
#include <signal.h>

#include <cmath>
#include <sstream>

#include "support/curves.h"
#include "trireme/core/json.h"

namespace trireme::test {
namespace {

using ::testing::HasSubstr;

/// 50 steps of a small gpt, here and in PyTorch.
struct Curves {
  std::vector<double> ours = {}, theirs = {}, our_scales = {}, their_scales = {}, our_skips = {},
                      their_skips = {};
};

Curves train_both(const Scratch& folder, const std::string& precision,
                  const std::vector<std::string>& more = {}) {
  const std::string config = tiny_config(folder), dir = folder / precision;
  const std::string tokens = folder / "tokens.u16";
  must({kTrireme, "data", "make", tokens, "--tokens", "8000", "--vocab", "64", "--force"});
  const auto keys = with({"data.kind=tokens", "data.path=" + tokens, "log.samples=true",
                          "checkpoint.keep=100", "batch.global=8", "batch.micro=8", "run.steps=50",
                          "mesh.replica=1", "precision.compute=" + precision},
                         more);
  must(train_arguments(config, dir, with(keys, {"run.steps=0"})));
  must(train_arguments(config, dir, keys));
  const auto theirs = must({python_with_torch(), TRIREME_SOURCE_DIR "/tests/e2e/torch_gpt.py", dir,
                            tokens, "50", precision});
  Curves curves{.ours = numbers_of(dir, "loss")};
  std::istringstream lines(theirs.out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    double loss = 0, scale = 1, skipped = 0;
    words >> loss >> scale >> skipped;
    curves.theirs.push_back(loss);
    curves.their_scales.push_back(scale);
    curves.their_skips.push_back(skipped);
  }
  if (precision == "float16") {
    curves.our_scales = numbers_of(dir, "loss_scale");
    curves.our_skips = numbers_of(dir, "skipped");
  }
  return curves;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

TEST(TrainIn16Bits, GivesTheLossesOfPyTorchsAutocast) {
  const Scratch folder;
  const auto exact = train_both(folder, "float64", {"precision.reduce=float64"}).ours;
  const std::vector<double> zeros(exact.size());
  for (const auto& [precision, rounding] :
       {std::pair("bfloat16", 0x1p-8), std::pair("float16", 0x1p-11)}) {
    const Curves both = train_both(folder, precision);
    ASSERT_EQ(both.ours.size(), 50u);
    ASSERT_EQ(both.theirs.size(), 50u);
    const double allowed = 2 * distance(both.theirs, exact) + 4 * rounding * distance(exact, zeros);
    EXPECT_LE(distance(both.ours, exact), allowed) << precision;
    EXPECT_LE(distance(both.ours, both.theirs), allowed) << precision;
    EXPECT_LT(both.ours.back(), both.ours.front() - 0.1) << "both have learned something";
  }
}

TEST(TrainIn16Bits, SkipsTheStepsThatPyTorchSkips) {
  const Scratch folder;
  // A scale that overflows at first, and grows until it overflows again.
  const Curves both =
      train_both(folder, "float16", {"precision.loss_scale=1073741824", "precision.growth=5"});
  EXPECT_EQ(both.our_skips, both.their_skips);
  EXPECT_EQ(both.our_scales, both.their_scales);
  const auto skips = std::count(both.our_skips.begin(), both.our_skips.end(), 1);
  EXPECT_GT(skips, 10);
  EXPECT_LT(skips, 30);
}

TEST(TrainIn16Bits, ContinuesToTheBitAfterAKillAmongSkippedSteps) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run", whole = folder / "whole";
  for (const auto& mesh : std::vector<std::vector<std::string>>{
           {"mesh.replica=2"}, {"mesh.replica=1", "mesh.shard=2", "mesh.tensor=2"}}) {
    // The first twelve steps or so overflow.
    const auto keys =
        with({"precision.compute=float16", "precision.loss_scale=1e9", "precision.growth=6",
              "checkpoint.every=3", "run.steps=30", "checkpoint.keep=20", "log.every=1"},
             mesh);
    const std::string here = dir + mesh.back(), there = whole + mesh.back();
    must(train_arguments(config, there, keys));
    Command killed(train_arguments(config, here, keys), {.deadline = kPatience});
    ASSERT_TRUE(killed.wait_for("step 8/30"));
    killed.signal(SIGKILL);
    killed.finish();
    ASSERT_LT(texts_of(here, "loss").size(), 30u);
    EXPECT_THAT(must(train_arguments(config, here, keys)).out, HasSubstr("continues from"));
    EXPECT_EQ(texts_of(here, "loss"), texts_of(there, "loss"));
    EXPECT_EQ(texts_of(here, "loss_scale"), texts_of(there, "loss_scale"));
    EXPECT_EQ(texts_of(here, "skipped"), texts_of(there, "skipped"));
    EXPECT_EQ(texts_of(here, "skipped").front(), "1");
    EXPECT_EQ(texts_of(here, "skipped").back(), "0");
    must({kTrireme, "ckpt", "diff", here, there});
  }
}

TEST(TrainIn16Bits, TakesTheMemoryThatCheckForetells) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const std::vector<std::vector<std::string>> cases = {
      {"mesh.replica=1", "precision.compute=bfloat16"},
      {"mesh.replica=1", "mesh.tensor=2", "precision.compute=float16"},
      {"mesh.replica=1", "mesh.shard=4", "precision.compute=bfloat16"},
      {"mesh.replica=2", "precision.compute=bfloat16", "precision.reduce=bfloat16"},
      {"mesh.replica=1", "precision.compute=bfloat16", "model.vocab=30000", "model.hidden=64"},
      {"mesh.replica=1", "mesh.shard=2", "memory.shard=optimizer", "precision.compute=bfloat16",
       "precision.master=none"},
      {"mesh.replica=1", "model.kind=llama", "precision.compute=bfloat16"},
      {"mesh.replica=1", "mesh.shard=2", "model.kind=llama", "precision.compute=float16"},
      {"mesh.replica=1", "model.kind=mlp", "model.seq=8", "precision.compute=bfloat16",
       "precision.master=none"}};
  for (const auto& some : cases) {
    const auto keys =
        with({"model.hidden=256", "model.layers=4", "model.vocab=1000", "model.heads=4",
              "batch.global=16", "batch.micro=4", "run.steps=3", "run.device=cpu"},
             some);
    EXPECT_NEAR(foretold_by_measured(config, keys), 1, 0.05) << ::testing::PrintToString(some);
  }
}

}  // namespace
}  // namespace trireme::test
