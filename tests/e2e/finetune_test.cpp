// Finetuning as people start it: low-rank adapters and parameter groups, against PyTorch, stopped
// and continued, on servers, merged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "support/training.h"
#include "trireme/core/json.h"

namespace trireme::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Keys = std::vector<std::string>;

Keys operator+(Keys a, const Keys& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// At four times this rate training is unstable: what another order of sums changes grows twentyfold
// in a step.
const Keys kAdapters = {"lora.rank=4", "lora.alpha=8", "lora.targets=[\"*\"]", "optim.lr=0.005"};
const Keys kGroups = {
    "optim.groups=[{match=\"*.bias\", lr=0.01}, {match=\"h.0.*\", lr=1e-4, weight_decay=0.5}]"};

class Finetuning : public testing::Test {
 protected:
  const Scratch folder_;
  const std::string config_ = tiny_config(folder_);
  std::string dir(const std::string& name) const { return folder_ / name; }

  CommandResult train(const std::string& name, const Keys& keys, int code = 0) const {
    const auto result = run_patiently(train_arguments(config_, dir(name), keys));
    EXPECT_EQ(result.code, code) << result.out << result.err;
    return result;
  }
  /// The names of the tensors in the newest checkpoint of a run.
  core::Json info(const std::string& name) const {
    const auto result = run_patiently({kTrireme, "ckpt", "info", dir(name), "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    return core::parse_json(result.out, "ckpt info");
  }
  bool same(const std::string& a, const std::string& b) const {
    return run_patiently({kTrireme, "ckpt", "diff", dir(a), dir(b)}).code == 0;
  }
  /// The run `keys` stopped at step 8 and continued has the bits of one that was not.
  void expect_continues(const Keys& keys) const {
    train("once", keys + Keys{"run.steps=16"});
    train("twice", keys + Keys{"run.steps=16", "checkpoint.every=8", "checkpoint.keep=9"});
    for (const auto& file : std::filesystem::directory_iterator(dir("twice") + "/checkpoints"))
      if (file.path().filename() == "step-00000016") std::filesystem::remove_all(file);
    EXPECT_THAT(train("twice", keys + Keys{"run.steps=16"}).out,
                AllOf(HasSubstr("continues from"), HasSubstr("step-00000008")));
    EXPECT_EQ(texts_of(dir("twice"), "loss"), texts_of(dir("once"), "loss"));
    EXPECT_TRUE(same("once", "twice"));
  }
};

TEST_F(Finetuning, OfAdaptersGivesTheLossesOfPyTorch) {
  const std::string tokens = folder_ / "tokens.u16";
  const Keys data = {"data.kind=tokens",        "data.path=" + tokens, "log.samples=true",
                     "checkpoint.keep=100",     "mesh.replica=1",      "precision.compute=float64",
                     "precision.reduce=float64"};
  ASSERT_EQ(
      run_patiently({kTrireme, "data", "make", tokens, "--tokens", "4000", "--vocab", "64"}).code,
      0);
  train("base", data + Keys{"run.steps=0"});
  train("run", data + kAdapters + Keys{"run.steps=0"});
  train("run", data + kAdapters);
  const auto theirs =
      run_command({python_with_torch(), TRIREME_SOURCE_DIR "/tests/e2e/torch_gpt.py", dir("run"),
                   tokens, "20", "float64", "cpu", dir("base")},
                  {.deadline = kPatience});
  ASSERT_EQ(theirs.code, 0) << theirs.err;
  std::istringstream lines(theirs.out);
  const auto ours = numbers_of(dir("run"), "loss");
  ASSERT_THAT(ours, SizeIs(20));
  std::size_t step = 0;
  for (std::string line; std::getline(lines, line); ++step)
    EXPECT_NEAR(ours.at(step), std::stod(line), 1e-9) << "step " << step + 1;
  EXPECT_EQ(step, 20u);
  EXPECT_LT(ours.back(), ours.front() - 0.02) << "both have learned something";
}

TEST_F(Finetuning, OfAdaptersSavesThemAloneAndContinuesToTheBit) {
  expect_continues(kAdapters + Keys{"mesh.replica=2"});
  const core::Json saved = info("once");
  for (const auto& tensor : saved.at("tensors").items())
    EXPECT_THAT(tensor.key(), HasSubstr(".lora_"));
  EXPECT_EQ(saved.at("tensors").size(), 2u * 4 * 2 * 3) << "A and B of 4 layers in 2 blocks";
  EXPECT_EQ(saved.at("extra").at("lora").at("base"), core::Json({{"seed", 1}}));
  EXPECT_THAT(train("once", Keys{"run.steps=20"}, 2).err,
              HasSubstr("lora.rank was 4, is 0 now; set it back"));
}

TEST_F(Finetuning, OfAdaptersGoesOnAnotherMesh) {
  const Keys exact = kAdapters + Keys{"precision.compute=float64"};
  train("many", exact + Keys{"mesh.replica=1", "mesh.tensor=2", "run.steps=8", "optim.warmup=3",
                             "optim.schedule=constant"});
  train("plain", exact + Keys{"mesh.replica=1", "optim.schedule=constant"});
  train("many", exact + Keys{"mesh.replica=1", "mesh.pipe=2", "optim.schedule=constant"});
  const auto ours = numbers_of(dir("many"), "loss"), wanted = numbers_of(dir("plain"), "loss");
  ASSERT_EQ(ours.size(), wanted.size());
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], wanted[i], 1e-10) << i;
}

TEST_F(Finetuning, OfAdaptersBeginsFromACheckpointAndIsMergedIntoIt) {
  const Keys exact = {"precision.compute=float64", "mesh.replica=1", "eval.every=12"};
  train("base", exact + Keys{"run.steps=8"});
  const Keys keys = exact + kAdapters + Keys{"model.from=" + dir("base"), "run.steps=12"};
  const auto first = train("tensor", keys + Keys{"mesh.tensor=2", "checkpoint.keep=9"});
  EXPECT_THAT(first.out, AllOf(HasSubstr("starts from"), HasSubstr("of adapters are trained")));
  train("pipe", keys + Keys{"mesh.pipe=2"});
  const auto ours = numbers_of(dir("pipe"), "loss"), wanted = numbers_of(dir("tensor"), "loss");
  ASSERT_EQ(ours.size(), wanted.size());
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], wanted[i], 1e-10) << i;

  // What is continued reads the same weights again, and gives the same bits.
  const auto before = texts_of(dir("tensor"), "loss");
  std::filesystem::remove_all(dir("tensor") + "/checkpoints/step-00000012");
  EXPECT_THAT(train("tensor", keys + Keys{"mesh.tensor=2"}).out,
              AllOf(HasSubstr("starts from"), HasSubstr("continues from")));
  EXPECT_EQ(texts_of(dir("tensor"), "loss"), before);
  const core::Json base = info("tensor").at("extra").at("lora").at("base");
  EXPECT_EQ(base.at("from"), dir("base"));
  EXPECT_THAT(base.at("content").get<std::string>(), SizeIs(16));

  const auto ckpt = [&](const Keys& words) {
    return run_patiently(Keys{kTrireme, "ckpt"} + words);
  };
  const auto merged = ckpt({"merge", dir("tensor"), dir("merged")});
  EXPECT_EQ(merged.code, 0) << merged.err;
  train("again",
        exact + Keys{"model.from=" + dir("merged"), "run.steps=1", "optim.lr=0", "eval.every=1"});
  EXPECT_NEAR(numbers_of(dir("again"), "eval_loss").at(0),
              numbers_of(dir("tensor"), "eval_loss").at(0), 1e-12);

  train("other", exact + Keys{"run.steps=4", "run.seed=7"});
  const std::pair<Keys, const char*> refused[] = {
      {{"merge", dir("tensor"), dir("x"), "--base", dir("other")}, "has other weights than those"},
      {{"merge", dir("base"), dir("x")}, "holds no adapters"},
      {{"export", dir("tensor"), dir("x")}, "trireme ckpt merge"}};
  for (const auto& [words, said] : refused) {
    const auto result = ckpt(words);
    EXPECT_EQ(result.code, 2) << words[0] << result.out;
    EXPECT_THAT(result.err, HasSubstr(said));
    EXPECT_FALSE(std::filesystem::exists(dir("x")));
  }
  EXPECT_THAT(train("y", exact + Keys{"model.from=" + dir("tensor")}, 2).err,
              HasSubstr("without the weights that they belong to"));
  train("base", exact + Keys{"run.steps=10"});  // its newest step is another one now
  EXPECT_THAT(train("tensor", keys + Keys{"mesh.tensor=2", "run.steps=14"}, 2).err,
              HasSubstr("its adapters belong to other weights"));
}

TEST_F(Finetuning, WithParameterGroupsContinuesToTheBit) {
  expect_continues(kGroups + Keys{"mesh.replica=1", "mesh.shard=2"});
}

TEST_F(Finetuning, OnServersHasTheLossesOfReplicas) {
  const Keys exact = {"precision.compute=float64", "mesh.replica=2", "run.threads=1"};
  for (const Keys& keys : {kGroups, kAdapters}) {
    const std::string name = keys[0].substr(0, 5);
    train(name + "replicas", exact + keys);
    train(name + "served", exact + keys + Keys{"sync.kind=stale", "sync.servers=2"});
    const auto ours = numbers_of(dir(name + "served"), "loss"),
               wanted = numbers_of(dir(name + "replicas"), "loss");
    ASSERT_EQ(ours.size(), wanted.size());
    for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], wanted[i], 1e-12) << i;
  }
}

TEST_F(Finetuning, IsCheckedBeforeItBegins) {
  const auto check = [&](const Keys& keys) {
    return run_patiently(Keys{kTrireme, "train", config_, "--check"} + keys);
  };
  const auto adapters = check(kAdapters);
  EXPECT_EQ(adapters.code, 0) << adapters.err;
  // Two blocks of 32 -> 96, 32 -> 32, 32 -> 128, 128 -> 32, each (in + out) x 4.
  EXPECT_THAT(adapters.out, HasSubstr("(4096 of adapters are trained)"));
  const std::pair<Keys, const char*> refused[] = {
      {{"lora.rank=4"}, "lora.rank = 4 needs layers to adapt, but lora.targets is empty"},
      {{"lora.alpha=4"}, "has no effect while lora.rank = 0; set lora.rank=8"},
      {{"lora.rank=4", "lora.targets=[\"*.query\"]"}, "\"*.query\" matches no nn::Linear"},
      {{"optim.groups=[{match=\"x\"}]"}, "optim.groups[0]: match = \"x\" matches no parameter"},
      {{"optim.lr=0", "optim.groups=[{match=\"*\", lr=1}]"},
       "follows the schedule of optim.lr = 0"},
      {{"memory.recompute=except_last"}, "has no effect while mesh.pipe = 1; set mesh.pipe=2"}};
  for (const auto& [keys, said] : refused) {
    const auto result = check(keys);
    EXPECT_EQ(result.code, 2) << keys[0] << result.out;
    EXPECT_THAT(result.err, HasSubstr(said));
  }
}

}  // namespace
}  // namespace trireme::test
