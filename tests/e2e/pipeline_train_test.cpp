// `trireme train` on meshes with a pipe axis.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "support/curves.h"
#include "support/leftovers.h"
#include "trireme/core/json.h"

namespace trireme::test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

const std::vector<std::string> kDeep = {"model.layers=4", "batch.global=8", "batch.micro=1"};

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(TrainOnAPipeAxis, GivesTheLossesOfOneRank) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto keys = with(kInDouble, kDeep);
  must(train_arguments(config, folder / "one", with(keys, {"mesh.replica=1", "eval.every=5"})));
  const auto alone = numbers_of(folder / "one", "loss");
  ASSERT_EQ(alone.size(), 20u);
  const std::vector<std::vector<std::string>> meshes = {
      // Eight processes, everything at once.
      {"mesh.pipe=2", "mesh.tensor=2", "mesh.replica=2", "eval.every=5", "check.hash_every=5"},
      {"mesh.pipe=2", "mesh.shard=2", "mesh.replica=1", "pipeline.schedule=zb-v"},
      {"mesh.pipe=3", "mesh.replica=1", "pipeline.schedule=interleaved",
       "pipeline.stages_per_rank=2", "pipeline.balance=params", "comm.backend=tcp"},
      {"mesh.pipe=2", "mesh.replica=1", "memory.recompute=block", "pipeline.schedule=dualpipe-v"}};
  for (std::size_t i = 0; i < meshes.size(); ++i) {
    const std::string dir = folder / ("mesh" + std::to_string(i));
    must(train_arguments(config, dir, with(keys, meshes[i])));
    expect_same_curve(numbers_of(dir, "loss"), alone);
    expect_same_curve(numbers_of(dir, "grad_norm"), numbers_of(folder / "one", "grad_norm"));
    if (i == 0)
      expect_same_curve(numbers_of(dir, "eval_loss"), numbers_of(folder / "one", "eval_loss"));
  }
}

TEST(TrainOnAPipeAxis, IsProvedByVerify) {
  const Scratch folder;
  const auto keys = with({kTrireme, "verify", tiny_config(folder)}, kDeep);
  EXPECT_THAT(must(with(keys, {"mesh.pipe=2", "mesh.tensor=2", "mesh.replica=2"})).out,
              HasSubstr("same: 3 steps of pipe 2 x replica 2 x tensor 2"));
  EXPECT_THAT(must(with(keys, {"mesh.pipe=3", "mesh.replica=1", "pipeline.schedule=zb-h1"})).out,
              HasSubstr("same: 3 steps"));
  // The last stage is the head alone, whose loss is no call of a layer.
  EXPECT_THAT(must(with(keys, {"mesh.pipe=3", "mesh.replica=1", "model.kind=mlp", "model.seq=4",
                               "model.layers=1"}))
                  .out,
              HasSubstr("same: 3 steps"));
  for (const char* mistake : {"average", "reduce", "stale", "data"}) {
    const auto result = must(with(keys, {"mesh.pipe=2", "mesh.replica=2", "--plant", mistake}), 3);
    EXPECT_THAT(result.out + result.err, HasSubstr("differs")) << mistake;
  }
}

TEST(TrainOnAPipeAxis, GivesTheSameBitsAfterAStopAndOnEveryBackend) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto mesh = with(kDeep, {"mesh.replica=1", "mesh.pipe=2", "checkpoint.every=5",
                                 "run.device=cpu", "pipeline.balance=params"});
  for (const char* backend : {"shm", "tcp", "local"})
    must(train_arguments(config, folder / backend,
                         with(mesh, {std::string("comm.backend=") + backend})));
  EXPECT_EQ(texts_of(folder / "shm", "loss"), texts_of(folder / "tcp", "loss"));
  EXPECT_EQ(texts_of(folder / "shm", "loss"), texts_of(folder / "local", "loss"));
  // Stopped after ten steps, and gone on with: cut where it was cut before, though what takes how
  // long is measured anew.
  const auto by_time = with(mesh, {"pipeline.balance=time"});
  const std::string dir = folder / "again";
  must(train_arguments(config, dir, by_time));
  const auto whole = texts_of(dir, "loss");
  std::filesystem::remove_all(dir + "/checkpoints/step-00000020");
  std::filesystem::remove_all(dir + "/checkpoints/step-00000015");
  const auto resumed = must(train_arguments(config, dir, by_time));
  EXPECT_THAT(resumed.out, HasSubstr("continues from"));
  EXPECT_EQ(texts_of(dir, "loss"), whole);
}

TEST(TrainOnAPipeAxis, GoesOnWhereAnotherMeshHasStopped) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto keys = with(with(kInDouble, kDeep), {"optim.schedule=constant", "mesh.replica=1"});
  must(train_arguments(config, folder / "flat", keys));
  const std::vector<std::vector<std::string>> legs = {
      {"run.steps=5", "mesh.pipe=4"},
      {"run.steps=10", "mesh.shard=3"},
      {"run.steps=15", "mesh.pipe=2", "mesh.shard=2", "pipeline.schedule=zb-h1"},
      {"run.steps=20", "mesh.pipe=2", "mesh.tensor=2", "pipeline.schedule=zb-v"}};
  for (const auto& leg : legs) must(train_arguments(config, folder / "moving", with(keys, leg)));
  expect_same_curve(numbers_of(folder / "moving", "loss"), numbers_of(folder / "flat", "loss"));
}

TEST(TrainOnAPipeAxis, WritesATraceOfEveryActionAndOpOfAllRanks) {
  const Scratch folder;
  const std::string dir = folder / "run";
  must(train_arguments(tiny_config(folder), dir,
                       with(kDeep, {"mesh.pipe=2", "mesh.replica=2", "run.steps=3",
                                    "batch.global=8", "log.trace=true"})));
  const auto trace = core::parse_json(text_of(dir + "/trace.json"), "trace");
  std::map<int, std::multiset<std::string>> actions;
  std::map<int, int> ops;
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> spans;  // of a rank's row
  for (const auto& event : trace) {
    const int rank = event.at("pid");
    if (event.at("ph") == "b") ++ops[rank];
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts"), took = event.at("dur");
    EXPECT_LT(begin + took, 60e6) << event.at("name");
    actions[rank].insert(event.at("name").get<std::string>());
    spans[{rank, event.at("tid").get<int>()}].emplace_back(begin, -(begin + took));
  }
  for (auto& [row, all] : spans) {  // viewers drop what overlaps without lying inside
    std::sort(all.begin(), all.end());
    std::vector<double> open;
    for (const auto& [begin, minus_end] : all) {
      while (!open.empty() && open.back() <= begin + 1e-6) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(-minus_end, open.back() + 1e-6) << "rank " << row.first << ", row " << row.second;
      }
      open.push_back(-minus_end);
    }
  }
  ASSERT_EQ(actions.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    const std::string stage = rank < 2 ? "0" : "1";
    for (const char* what : {"F0", "B0", "F3", "B3", "REDUCE_GRAD"})
      EXPECT_EQ(actions[rank].count(stage + what), 3u) << rank << " " << what;
    EXPECT_EQ(actions[rank].count(rank < 2 ? "0SEND_F2" : "1RECV_F2"), 3u);
    EXPECT_EQ(actions[rank].count("step 2"), 1u);
    EXPECT_GT(ops[rank], 40);
  }
}

/// What every rank said in its log.
std::vector<std::string> last_words(const std::string& dir, int ranks) {
  std::vector<std::string> words;
  for (int rank = 0; rank < ranks; ++rank)
    words.push_back(text_of(dir + "/log/rank-" + std::to_string(rank) + ".log"));
  return words;
}

TEST(TrainOnAPipeAxis, ARankThatDiesOrStopsIsNamedWithItsActionByEverybody) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    for (const char* backend : {"shm", "tcp"}) {
      const Scratch folder;
      const std::string marker = unique_marker(), dir = folder / "run";
      Command run(train_arguments(tiny_config(folder), dir,
                                  with(kDeep, {"mesh.pipe=2", "mesh.replica=2", "run.steps=100000",
                                               "log.every=1", "model.hidden=64",
                                               std::string("comm.backend=") + backend})),
                  {.environment = {{"TRIREME_TEST_MARK", marker}, {"TRIREME_HEARTBEAT_S", "2"}},
                   .deadline = std::chrono::seconds(60)});
      ASSERT_TRUE(run.wait_for("step 5/"));
      std::vector<pid_t> ranks;
      for (const pid_t pid : processes_with("TRIREME_TEST_MARK", marker))
        if (text_of("/proc/" + std::to_string(pid) + "/comm") == "trireme-rank\n")
          ranks.push_back(pid);
      std::sort(ranks.begin(), ranks.end());
      ASSERT_EQ(ranks.size(), 4u);
      ::kill(ranks[3], signal);
      const auto result = run.finish();
      EXPECT_NE(result.code, 0);
      const auto words = last_words(dir, 4);
      const std::string who = "rank 3 \\(host [^ ]+, pid " + std::to_string(ranks[3]) + "\\) ";
      for (int rank = 0; rank < 3; ++rank)
        EXPECT_THAT(words[static_cast<std::size_t>(rank)],
                    ContainsRegex(who + (signal == SIGKILL ? "died" : "hangs") +
                                  " in (1[A-Z_]+[0-9]* \\(action [0-9]+ of [0-9]+ of '1f1b'|"
                                  "what follows the schedule '1f1b' of step [0-9]+)"))
            << backend;
      EXPECT_TRUE(eventually([&] { return processes_with("TRIREME_TEST_MARK", marker).empty(); }));
    }
  }
}

TEST(TrainOnAPipeAxis, RunsAScheduleThatSomebodyWroteInAFile) {
  const Scratch folder;
  const std::string config = tiny_config(folder), file = folder / "mine.csv";
  std::ofstream(file)
      << "0F0,0F1,0F2,0F3,,0B1,0B0,0I2,0B3,0W2\n1F0,1F1,1B1,1B0,1F2,1F3,1I2,1W2,1B3,\n";
  const auto keys = with(kInDouble, {"model.layers=4", "batch.global=8", "batch.micro=2"});
  must(train_arguments(config, folder / "one", with(keys, {"mesh.replica=1"})));
  const auto run = must(
      train_arguments(config, folder / "file",
                      with(keys, {"mesh.replica=1", "mesh.pipe=2", "pipeline.schedule=" + file})));
  expect_same_curve(numbers_of(folder / "file", "loss"), numbers_of(folder / "one", "loss"));
}

TEST(TrainOnAPipeAxis, RefusesWhatCannotBeWithTheNumbers) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto file = [&](const char* name, const char* text) {
    const std::string path = folder / name;
    std::ofstream(path) << text;
    return "pipeline.schedule=" + path;
  };
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {{"mesh.pipe=7", "pipeline.balance=params"}, {"7 stages", "chain of 6"}},
      {{"mesh.pipe=15"}, {"15 stages", "gives 14 stages at most"}},
      {{"mesh.pipe=2", "pipeline.schedule=dualpipe-v", "batch.micro=4"},
       {"4 micro-batches", "not 2"}},
      {{"mesh.pipe=2", "pipeline.schedule=1f1b", "pipeline.stages_per_rank=2"}, {"1f1b", "2"}},
      {{"mesh.pipe=2", "pipeline.schedule=pipedream"}, {"pipedream", "optim.clip = 1", "=0"}},
      {{"mesh.pipe=2", "pipeline.schedule=pipedream", "optim.clip=0"}, {"model.tie=false"}},
      {{"mesh.pipe=4", "pipeline.schedule=pipedream-2bw", "optim.clip=0", "model.tie=false",
        "batch.micro=4"},
       {"2 micro-batches a step on 4 ranks", "at least 4"}},
      {{"mesh.pipe=2",
        file("updates.csv", "0F0,0B0,0UPDATE,0F1,0B1,0UPDATE\n1F0,1B0,1UPDATE,1F1,1B1,1UPDATE\n"),
        "batch.micro=4"},
       {"updates weights in the middle and then drains"}},
      {{"mesh.pipe=2", "pipeline.schedule=1f2b"}, {"1f2b", "interleaved", "No such file"}},
      {{"mesh.pipe=2", "pipeline.balance=1,2"}, {"3 layers", "the model has 4"}},
      {{"mesh.pipe=2", "pipeline.balance=1,1,2"}, {"3 stages", "has 2"}},
      {{"mesh.pipe=2", file("dead.csv", "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"), "batch.micro=4"},
       {"0B0"}},
      {{"mesh.pipe=2", file("skips.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n"), "batch.micro=4"},
       {"never does 1B1"}},
      {{"mesh.pipe=2", file("stage.csv", "0F0,0F1,0B0,0B1\n2F0,2B0,2F1,2B1\n"), "batch.micro=4"},
       {"stage 1"}},
      {{"mesh.pipe=2", file("short.csv", "0F0,0B0\n1F0,1B0\n"), "batch.micro=4"},
       {"1 micro-batch", "are 2"}},
      {{"mesh.pipe=3", file("ranks.csv", "0F0,0B0\n1F0,1B0\n"), "batch.micro=8"}, {"2 ranks"}}};
  for (const auto& [keys, said] : cases) {
    const auto result = must(
        train_arguments(config, folder / "run", with(with(kDeep, {"mesh.replica=1"}), keys)), 2);
    for (const std::string& part : said)
      EXPECT_THAT(result.err, HasSubstr(part)) << ::testing::PrintToString(keys);
    const auto checked = run_command(
        with(with(with({kTrireme, "train", config}, kDeep), with({"mesh.replica=1"}, keys)),
             {"--check"}));
    EXPECT_EQ(checked.code, 2) << checked.out << ::testing::PrintToString(keys);
  }
}

TEST(TrainOnAPipeAxis, TakesTheMemoryThatCheckForetells) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const std::vector<std::vector<std::string>> meshes = {
      {"mesh.pipe=2", "pipeline.balance=2,2"},
      {"mesh.pipe=2", "pipeline.balance=2,2", "pipeline.schedule=gpipe", "model.tie=false"},
      {"mesh.pipe=2", "mesh.shard=2", "pipeline.balance=2,2"},
      {"mesh.pipe=4", "pipeline.balance=params", "memory.recompute=block"},
      {"mesh.pipe=2", "pipeline.balance=2,2", "model.kind=llama"},
      {"mesh.pipe=2", "pipeline.balance=2,2", "pipeline.schedule=pipedream-2bw", "model.tie=false",
       "optim.clip=0"},
      {"mesh.pipe=3", "pipeline.balance=2,1,1", "pipeline.schedule=pipedream", "model.tie=false",
       "optim.clip=0"}};
  for (const auto& mesh : meshes) {
    const auto keys = with(
        {"model.hidden=256", "model.layers=4", "model.vocab=1000", "model.heads=4", "model.seq=128",
         "batch.global=16", "batch.micro=2", "run.steps=3", "run.device=cpu", "mesh.replica=1"},
        mesh);
    EXPECT_NEAR(foretold_by_measured(config, keys), 1, 0.05) << ::testing::PrintToString(mesh);
  }
}

}  // namespace
}  // namespace trireme::test
