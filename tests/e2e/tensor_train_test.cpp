// `trireme train` and `trireme verify` on meshes that cut the layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "support/curves.h"
#include "trireme/core/json.h"

namespace trireme::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(TrainOnATensorAxis, GivesTheLossesOfOneRank) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  must(train_arguments(config, folder / "one", with(kInDouble, {"mesh.replica=1"})));
  const auto alone = numbers_of(folder / "one", "loss");
  ASSERT_EQ(alone.size(), 20u);
  const std::vector<std::vector<std::string>> meshes = {
      {"mesh.replica=2", "mesh.tensor=2"},
      {"mesh.replica=1", "mesh.tensor=4", "tensor.sequence=false"},
      {"mesh.replica=1", "mesh.tensor=2", "comm.backend=tcp"}};
  for (std::size_t i = 0; i < meshes.size(); ++i) {
    const std::string dir = folder / ("mesh" + std::to_string(i));
    must(train_arguments(config, dir, with(kInDouble, meshes[i])));
    expect_same_curve(numbers_of(dir, "loss"), alone);
    expect_same_curve(numbers_of(dir, "grad_norm"), numbers_of(folder / "one", "grad_norm"));
  }
}

TEST(TrainOnATensorAxis, GivesTheSameBitsOnEveryBackend) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  for (const char* backend : {"shm", "tcp", "local"})
    must(train_arguments(config, folder / backend,
                         {"mesh.replica=1", "mesh.tensor=2", "checkpoint.every=0", "run.device=cpu",
                          std::string("comm.backend=") + backend}));
  EXPECT_EQ(texts_of(folder / "shm", "loss"), texts_of(folder / "tcp", "loss"));
  EXPECT_EQ(texts_of(folder / "shm", "loss"), texts_of(folder / "local", "loss"));
}

TEST(TrainOnATensorAxis, GoesOnWhereAnotherMeshHasStopped) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  // The learning rate is constant: a schedule would see another end in every leg.
  const std::string dir = folder / "moving";
  const std::vector<std::vector<std::string>> legs = {
      {"run.steps=5", "mesh.replica=2", "mesh.tensor=2"},
      {"run.steps=10", "mesh.replica=1", "mesh.tensor=4", "tensor.sequence=false"},
      {"run.steps=15", "mesh.replica=3", "mesh.tensor=1"},
      {"run.steps=20", "mesh.replica=1", "mesh.tensor=2"}};
  const std::vector<std::string> constant = {"optim.schedule=constant"};
  must(train_arguments(config, folder / "flat",
                       with(with(kInDouble, constant), {"mesh.replica=1"})));
  for (const auto& leg : legs)
    must(train_arguments(config, dir, with(with(kInDouble, constant), leg)));
  expect_same_curve(numbers_of(dir, "loss"), numbers_of(folder / "flat", "loss"));
}

TEST(TrainOnATensorAxis, RefusesWhatCannotBeCutInOneSentence) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto heads =
      must(train_arguments(config, folder / "a", {"mesh.replica=1", "mesh.tensor=3"}), 2);
  EXPECT_THAT(
      heads.err,
      HasSubstr(
          "mesh.tensor = 3 does not fit model.heads = 2: use at most 2, or a multiple of it"));
  const auto checked = must(
      with(train_arguments(config, folder / "b", {"mesh.replica=1", "mesh.tensor=3"}), {"--check"}),
      2);
  EXPECT_EQ(checked.err, heads.err) << "--check says the same";
  for (const auto& result : {heads, checked})
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  const auto threads =
      must(train_arguments(config, folder / "d",
                           {"mesh.replica=1", "mesh.tensor=3", "comm.backend=local"}),
           2);
  EXPECT_EQ(threads.err, checked.err);
  const auto world = must({kTrireme, "run", "-n", "3", kTrireme, "train", config,
                           "run.dir=" + folder / "c", "mesh.replica=2", "mesh.tensor=2"},
                          2);
  for (const char* rank : {"[0] ", "[1] ", "[2] "})  // nobody hears only that another has stopped
    EXPECT_THAT(world.err,
                HasSubstr(std::string(rank) + "trireme train: the mesh needs 4 ranks (replica 2 x "
                                              "tensor 2), but the launcher started 3: use -n 4"));
  const auto sizes = must(
      {kTrireme, "run", "-n", "3", kTrireme, "verify", config, "mesh.replica=1", "mesh.tensor=3"},
      2);
  for (const char* rank : {"[0] ", "[1] ", "[2] "})
    EXPECT_THAT(sizes.err,
                HasSubstr(std::string(rank) + "trireme verify: " +
                          checked.err.substr(std::string("trireme train: ").size(), 40)));
}

TEST(TrainOnATensorAxis, CheckCountsARanksPart) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto parameters_kib = [&](const std::string& mesh) {
    const auto result =
        must(with(train_arguments(config, folder / "a"), {"mesh.replica=1", mesh, "--check"}));
    const auto line = result.out.find("  parameters");
    return std::stod(result.out.substr(line + 12));
  };
  // Two layers of width 32: matrices are halved, norms, positions and biases of rows are not.
  const double whole = parameters_kib("mesh.tensor=1"), part = parameters_kib("mesh.tensor=2");
  EXPECT_GT(part, 0.5 * whole);
  EXPECT_LT(part, 0.6 * whole);
}

TEST(VerifyCommand, ProvesAMeshAndSaysSo) {
  const Scratch folder;
  const std::string json = folder / "report.json";
  const auto result = must(
      {kTrireme, "verify", tiny_config(folder), "mesh.tensor=2", "mesh.replica=2", "--json", json});
  EXPECT_THAT(result.out, AllOf(HasSubstr("same: 3 steps of replica 2 x tensor 2"),
                                HasSubstr("h.1.mlp.c_proj.weight")));
  const auto report = core::Json::parse(std::ifstream(json));
  EXPECT_TRUE(report.at("same").get<bool>());
  EXPECT_TRUE(report.at("first").is_null());
  EXPECT_GT(report.at("tensors").size(), 80u);
  for (const auto& tensor : report.at("tensors"))
    EXPECT_LE(tensor.at("difference").get<double>(), 1e-10) << tensor.at("name");
}

TEST(VerifyCommand, ProvesWhatReallyRunsAndThatOneRankProvesNothing) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  EXPECT_THAT(
      must({kTrireme, "verify", config, "mesh.tensor=2", "mesh.replica=2", "--dtype", "float32"})
          .out,
      AllOf(HasSubstr("same: 3 steps of replica 2 x tensor 2"), HasSubstr("float32")));
  EXPECT_THAT(must({kTrireme, "verify", config, "mesh.replica=1"}).out,
              HasSubstr("proves nothing"));
  EXPECT_THAT(must({kTrireme, "verify", config, "--dtype", "int8"}, 2).err,
              HasSubstr("must be one of float32, float64, bfloat16, float16"));
}

TEST(VerifyCommand, NamesWhatIsPlantedAndExitsThree) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const std::pair<const char*, const char*> planted[] = {
      {"average", "factor"}, {"reduce", "partial sum"}, {"order", "permutation"},
      {"stale", "stale"},    {"data", "data"},          {"dropout", "dropout"}};
  for (const auto& [mistake, kind] : planted) {
    const auto result = must({kTrireme, "verify", "--plant", mistake, config, "mesh.tensor=2",
                              "mesh.replica=2", "--steps", "2"},
                             3);
    EXPECT_THAT(result.out, AllOf(HasSubstr("DIFFERENT"), HasSubstr("is the first that differs"),
                                  HasSubstr(std::string("(") + kind + ":")))
        << mistake;
    EXPECT_EQ(result.err, "") << "the launcher adds nothing";
  }
}

TEST(VerifyCommand, RunsUnderALauncherToo) {
  const Scratch folder;
  must({kTrireme, "run", "-n", "2", kTrireme, "verify", tiny_config(folder), "mesh.tensor=2",
        "mesh.replica=0", "--steps", "1"});
}

TEST(VerifyCommand, RefusesInOneSentence) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  EXPECT_THAT(must({kTrireme, "verify", config, "--plant", "sabotage"}, 2).err,
              HasSubstr("there are average, reduce"));
  EXPECT_THAT(must({kTrireme, "verify", config, "--steps", "0"}, 2).err, HasSubstr("at least one"));
  EXPECT_THAT(must({kTrireme, "verify"}, 2).err, HasSubstr("no configuration"));
  EXPECT_THAT(must({kTrireme, "verify", config, "mesh.replica=1", "--plant", "data"}, 2).err,
              HasSubstr("more than one rank"));
  EXPECT_THAT(
      must({kTrireme, "verify", config, "mesh.replica=2", "optim.lr=0", "--plant", "stale"}, 2).err,
      HasSubstr("had no effect here"));
  EXPECT_THAT(must({kTrireme, "verify", config, "--json", "/nonexistent/report.json"}, 2).err,
              HasSubstr("No such file"));
  EXPECT_THAT(must({kTrireme, "verify", "--help"}).out, HasSubstr("--plant"));
}

}  // namespace
}  // namespace trireme::test
