// `trireme train` with compressed gradients: kill and resume to the bit, other meshes, error
// feedback, and what is refused.
#include <gmock/gmock.h>
#include <signal.h>

#include "support/training.h"
#include "trireme/core/json.h"

namespace trireme::test::compressed {
namespace {

using ::testing::HasSubstr;

CommandResult must_train(const std::string& config, const std::string& dir,
                         const std::vector<std::string>& keys, int code = 0) {
  auto result = run_patiently(train_arguments(config, dir, keys));
  EXPECT_EQ(result.code, code) << result.out << result.err;
  return result;
}

std::vector<std::string> joined(std::vector<std::string> all,
                                const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// A run of 12 steps in one go, and the same one stopped after 5 and continued.
void expect_same_in_two_parts(const std::vector<std::string>& keys) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto all = joined({"run.steps=12", "optim.schedule=constant", "checkpoint.every=5"}, keys);
  must_train(config, folder / "whole", all);
  must_train(config, folder / "parts", joined(all, {"run.steps=5"}));
  must_train(config, folder / "parts", all);
  EXPECT_EQ(texts_of(folder / "parts", "loss"), texts_of(folder / "whole", "loss"));
  EXPECT_EQ(texts_of(folder / "parts", "loss").size(), 12u);
}

TEST(CompressedTraining, ThatStopsContinuesToTheBit) {
  expect_same_in_two_parts({"compress.kind=randomk", "compress.ratio=0.05"});
  expect_same_in_two_parts(
      {"compress.kind=int8", "mesh.replica=2", "mesh.shard=2", "model.kind=llama"});
  expect_same_in_two_parts({"compress.kind=powersgd", "compress.rank=2", "mesh.replica=1",
                            "mesh.shard=2", "memory.shard=gradients", "precision.compute=float16"});
}

TEST(CompressedTraining, ThatIsKilledContinuesToTheBit) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const std::vector<std::string> keys = {"compress.kind=topk", "compress.ratio=0.05",
                                         "run.steps=60", "checkpoint.every=3"};
  must_train(config, folder / "whole", keys);
  {
    Command killed(train_arguments(config, folder / "killed", joined(keys, {"log.every=1"})),
                   {.deadline = kPatience});
    ASSERT_TRUE(killed.wait_for("step 25/"));
    ::kill(killed.pid(), SIGKILL);
    killed.finish();
  }
  must_train(config, folder / "killed", keys);
  EXPECT_EQ(texts_of(folder / "killed", "loss"), texts_of(folder / "whole", "loss"));
}

TEST(CompressedTraining, GoesOnFromMeshToMesh) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const std::vector<std::vector<std::string>> meshes = {
      {"mesh.replica=2"},
      {"mesh.replica=1", "mesh.shard=2"},
      {"mesh.replica=3"},
      {"mesh.replica=1", "mesh.pipe=2", "mesh.shard=2"}};
  int steps = 0;
  for (const auto& mesh : meshes) {
    steps += 5;
    must_train(config, folder / "run",
               joined({"compress.kind=topk", "compress.ratio=0.1", "optim.schedule=constant",
                       "run.steps=" + std::to_string(steps)},
                      mesh));
  }
  const auto losses = numbers_of(folder / "run", "loss");
  ASSERT_EQ(losses.size(), 20u);
  EXPECT_LT(losses.back(), losses.front());
}

/// The mean of the last ten losses.
double end_of(const std::string& dir) {
  const auto losses = numbers_of(dir, "loss");
  double sum = 0;
  for (std::size_t i = losses.size() - 10; i < losses.size(); ++i) sum += losses[i];
  return sum / 10;
}

TEST(ErrorFeedback, MakesTopkConvergeWithOnePercent) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const std::vector<std::string> keys = {
      "run.steps=1000", "optim.kind=sgd",          "optim.lr=1",           "optim.momentum=0",
      "optim.clip=0",   "optim.schedule=constant", "optim.weight_decay=0", "checkpoint.every=0",
      "optim.warmup=0", "data.samples=4096",       "batch.global=16",      "batch.micro=8"};
  const auto topk = joined(keys, {"compress.kind=topk", "compress.ratio=0.01"});
  const std::string said = must_train(config, folder / "plain", keys).out;
  must_train(config, folder / "with", topk);
  must_train(config, folder / "without", joined(topk, {"compress.feedback=false"}));
  // No model can get below the entropy of the data, which the program prints.
  const std::string words = "(floor ";
  ASSERT_NE(said.find(words), said.npos) << said;
  const double floor = std::stod(said.substr(said.find(words) + words.size(), 10));
  const double plain = end_of(folder / "plain") - floor, with = end_of(folder / "with") - floor,
               without = end_of(folder / "without") - floor;
  std::printf("above the floor: %.3f; topk 1 %%: %.3f with feedback, %.3f without\n", plain, with,
              without);
  EXPECT_LT(with, 1.3 * plain);
  EXPECT_GT(without, 2.5 * plain);
}

TEST(CompressedTraining, TakesTheMemoryThatCheckForetells) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  for (const auto& keys : std::vector<std::vector<std::string>>{
           {"compress.kind=topk"},
           {"compress.kind=powersgd"},
           {"compress.kind=int8", "mesh.replica=1", "mesh.shard=2"},
           {"compress.kind=int8", "compress.feedback=false"}}) {
    const auto all = joined({"model.hidden=128", "model.vocab=2048", "run.device=cpu"}, keys);
    std::vector<std::string> bench = {kTrireme, "bench", "train", config},
                             check = {kTrireme, "train", config, "--check"};
    const auto measured = core::parse_json(run_patiently(joined(bench, all)).out, "bench")
                              .at("tensor_mib")
                              .get<double>();
    const std::string told = run_patiently(joined(check, all)).out;
    const std::string together = told.substr(told.find("  together") + 10, 30);
    const double ratio = std::stod(together) / measured;
    std::printf("%s: --check says %.3f of what is taken\n", keys.front().c_str(), ratio);
    EXPECT_GT(ratio, 0.95) << told;
    EXPECT_LT(ratio, 1.15) << told;
    EXPECT_EQ(told.find("residuals") != told.npos, keys.back() != "compress.feedback=false");
  }
}

TEST(CompressedTraining, ProvesOnItsMeshThatPowerSgdOfFullRankChangesNothing) {
  const Scratch folder;
  const auto proved = run_patiently({kTrireme, "verify", tiny_config(folder),
                                     "compress.kind=powersgd", "mesh.replica=2", "mesh.tensor=2"});
  EXPECT_EQ(proved.code, 0) << proved.err;
  EXPECT_THAT(proved.out, ::testing::ContainsRegex("powersgd of full rank = no compres.* same"));
  EXPECT_THAT(proved.out, ::testing::Not(HasSubstr("no compression                       0.0e+00")))
      << "nothing was compressed";
}

TEST(CompressedTraining, IsRefusedInOneSentence) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto said = [&](const std::vector<std::string>& keys) {
    return must_train(config, folder / "none", keys, 2).err;
  };
  EXPECT_THAT(said({"compress.kind=topk", "compress.ratio=0"}),
              HasSubstr("compress.ratio = 0.0 is out of range; it must be more than 0 and at most "
                        "1"));
  EXPECT_THAT(said({"compress.kind=powersgd", "compress.rank=0"}),
              HasSubstr("compress.rank = 0 is out of range"));
  EXPECT_THAT(said({"compress.kind=int8", "compress.ratio=0.1"}),
              HasSubstr("compress.ratio = 0.1 has no effect while compress.kind = \"int8\""));
  EXPECT_THAT(said({"compress.kind=int8", "compress.keep=[\"nothing.*\"]"}),
              HasSubstr("compress.keep: \"nothing.*\" matches no parameter"));
}

}  // namespace
}  // namespace trireme::test::compressed
