// `trireme train`, `verify` and `--check` of a mixture of experts that is dealt to ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/curves.h"

namespace trireme::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<std::string> kMixture = {"model.kind=moe-gpt", "model.experts=4",
                                           "model.expert_ffn=32", "model.z_loss=0.01"};

/// How experts were used in the first step, by layer: all of what metrics.jsonl says.
core::Json first_loads(const std::string& dir) {
  std::ifstream file(dir + "/metrics.jsonl");
  std::string line;
  std::getline(file, line);
  core::Json all = core::parse_json(line, "metrics").at("experts");
  for (core::Json& one : all) {
    EXPECT_EQ(one.at("load").size(), 4u);
    one.erase("balance");  // sums in another order
    one.erase("z");
  }
  return all;
}

TEST(TrainExperts, GivesTheLossesOfOneRankOnThreeHybrids) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto keys = with(kInDouble, kMixture);
  must(train_arguments(config, folder / "one", with(keys, {"mesh.replica=1"})));
  const std::vector<std::vector<std::string>> meshes = {
      {"mesh.replica=2", "mesh.expert=2", "comm.overlap_experts=true"},
      {"mesh.replica=1", "mesh.shard=2", "mesh.tensor=2", "mesh.expert=2"},
      {"mesh.pipe=2", "mesh.replica=2", "mesh.expert=2", "comm.backend=tcp"}};
  for (std::size_t i = 0; i < meshes.size(); ++i) {
    const std::string dir = folder / ("mesh" + std::to_string(i));
    must(train_arguments(config, dir, with(keys, meshes[i])));
    for (const char* field : {"loss", "grad_norm", "weight"})
      expect_same_curve(numbers_of(dir, field), numbers_of(folder / "one", field));
    EXPECT_EQ(first_loads(dir), first_loads(folder / "one")) << "those of all ranks and stages";
  }
}

TEST(TrainExperts, SixAxesAreProvedAndChecked) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto proved = must(std::vector<std::string>{
      kTrireme, "verify", config, "mesh.pipe=2", "mesh.replica=1", "mesh.shard=2", "mesh.tensor=2",
      "mesh.expert=2", "model.kind=moe-gpt", "model.experts=4"});
  EXPECT_THAT(proved.out, HasSubstr("same: 3 steps of pipe 2 x shard 2 x tensor 2, expert 2"));
  const auto told = must(std::vector<std::string>{kTrireme, "train", config, "--check",
                                                  "mesh.replica=2", "mesh.shard=2", "mesh.expert=2",
                                                  "model.kind=moe-gpt", "model.experts=4"});
  EXPECT_THAT(
      told.out,
      AllOf(HasSubstr("dense parameters  all layers; gradients of 4 ranks summed; state in "
                      "2 parts"),
            HasSubstr("experts           2 of 4 in all layers; gradients of 2 ranks summed; "
                      "state in 2 parts")));
}

}  // namespace
}  // namespace trireme::test
