// Every example is run as its first comment says, and must print what it promises.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <regex>
#include <sstream>

#include "support/command.h"
#include "support/scratch.h"

namespace trireme::test {
namespace {

using ::testing::HasSubstr;

CommandResult run_example(const std::string& name, int ranks, const std::string& backend = "auto") {
  return run_command({kBin + "trireme", "run", "-n", std::to_string(ranks), kBin + name},
                     {.environment = {{"TRIREME_BACKEND", backend}}});
}

TEST(Examples, HelloRanksAddUpTheirNumbers) {
  for (const std::string backend : {"shm", "tcp"}) {
    const auto result = run_example("01_hello_ranks", 4, backend);
    EXPECT_EQ(result.code, 0) << result.err;
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_THAT(result.out, HasSubstr("[" + std::to_string(rank) + "] hello from rank " +
                                        std::to_string(rank) + " of 4"));
    EXPECT_THAT(result.out, HasSubstr("1 + ... + 4 = 10"));
  }
}

TEST(Examples, HelloRanksWorksAlone) {
  const auto result = run_command({kBin + "01_hello_ranks"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("hello from rank 0 of 1"));
}

TEST(Examples, SayInOneSentenceWhatIsWrong) {
  for (const char* example : {"01_hello_ranks", "03_your_model"}) {
    const auto result =
        run_command({kBin + example}, {.environment = {{"RANK", "9"}, {"WORLD_SIZE", "8"}}});
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, HasSubstr("rank 9 in a world of 8"));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST(Examples, AllReduceAveragesByHand) {
  const auto result = run_example("02_all_reduce", 3);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("the average gradient is 0, expected 0"));
}

TEST(Examples, AModelOfYourOwnLearnsOnTwoReplicas) {
  const auto result = run_example("03_your_model", 2);
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("step 300  loss 0.00"));
}

TEST(Examples, UnevenAccumulationGivesTheGradientOfOneProcess) {
  for (const int ranks : {1, 3}) {
    const auto result = run_example("04_accumulation", ranks);
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("18 labels counted on " + std::to_string(ranks)));
  }
}

TEST(Examples, ADatasetOfYourOwnIsSeenOnceAnEpochAndResumed) {
  const auto result = run_example("05_your_dataset", 2);
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("once an epoch; resuming gave the same samples"));
}

TEST(Examples, AModelOfYourOwnIsCutByPatterns) {
  const auto result = run_example("06_cut_your_model", 2);
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("one rank alone differs by less than 1e-5"));
}

TEST(Examples, AModelOfYourOwnIsProved) {
  const auto right = run_example("07_prove_your_model", 2);
  EXPECT_EQ(right.code, 0) << right.out << right.err;
  EXPECT_THAT(right.out, HasSubstr("same: 3 steps of tensor 2"));
}

TEST(Examples, LayersArePlacedOnRanks) {
  for (const int ranks : {1, 2, 3}) {
    const auto result = run_example("08_layers_on_ranks", ranks);
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("has " + std::to_string(12 / ranks) + " of 12 parameters"));
  }
}

TEST(Examples, AModelOfYourOwnIsAPipeline) {
  const auto result = run_example("09_pipeline_your_model", 3);
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("at most 3 micro-batches in flight; as one rank alone"));
}

TEST(Examples, ACompressorOfYourOwnHardlyChangesTheLoss) {
  for (const int ranks : {1, 3}) {
    const auto result = run_example("12_your_compressor", ranks);
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("in three bytes a number: "));
  }
}

TEST(Examples, AModelOfYourOwnTrainsOnServers) {
  const std::string example = kBin + "13_parameter_server";
  const auto alone = run_command({example});
  EXPECT_EQ(alone.code, 0) << alone.out << alone.err;
  EXPECT_THAT(alone.out, HasSubstr("all updates made, loss 0.0"));
  for (const char* kind : {"lockstep", "stale", "free"}) {
    const auto roles =
        run_command({kBin + "trireme", "run", "--servers", "2", "--workers", "3", example, kind});
    EXPECT_EQ(roles.code, 0) << kind << roles.out << roles.err;
    for (const char* worker : {"[worker 0]", "[worker 1]", "[worker 2]"})
      EXPECT_THAT(roles.out, HasSubstr(std::string(worker) + " all updates made, loss 0.0"))
          << kind;
  }
}

TEST(Examples, ClickPredictionRisesOverRowsThatLieOnServers) {
  const std::string example = kBin + "14_click_prediction";
  const auto alone = run_command({example});
  EXPECT_EQ(alone.code, 0) << alone.out << alone.err;
  EXPECT_THAT(alone.out, HasSubstr("on clicks that nobody trained on"));
  const auto roles =
      run_command({kBin + "trireme", "run", "--servers", "4", "--workers", "2", example});
  EXPECT_EQ(roles.code, 0) << roles.out << roles.err;
  EXPECT_THAT(roles.out, HasSubstr("the whole table would have 653 MB"));
}

/// "step 17  loss 0x1.8p-3", by step.
std::map<int, std::string> losses_in(const std::string& text) {
  std::map<int, std::string> losses;
  std::istringstream lines(text);
  static const std::regex form("(?:\\[0\\] )?step (\\d+)  (loss .*)");
  std::smatch found;
  for (std::string line; std::getline(lines, line);)
    if (std::regex_match(line, found, form)) losses[std::stoi(found[1])] = found[2];
  return losses;
}

TEST(Examples, ALoopOfYourOwnThatIsKilledGoesOnToTheSameBits) {
  const Scratch folder;
  const auto run = [&](const std::string& name) {
    return std::vector<std::string>{kBin + "trireme", "run", "-n", "2", kBin + "10_save_and_resume",
                                    folder / name};
  };
  const auto whole = run_command(run("whole"));
  EXPECT_EQ(whole.code, 0) << whole.err;
  const auto expected = losses_in(whole.out);
  ASSERT_EQ(expected.size(), 300u);
  Command killed(run("killed"));
  ASSERT_TRUE(killed.wait_for("step 130  "));
  killed.signal(SIGKILL);  // the ranks go with it
  killed.finish();
  const auto again = run_command(run("killed"));
  EXPECT_EQ(again.code, 0) << again.out << again.err;
  EXPECT_THAT(again.out, HasSubstr("continues from step "));
  const auto rest = losses_in(again.out);
  ASSERT_FALSE(rest.empty());
  EXPECT_GT(rest.begin()->first, 1) << "it began anew";
  for (const auto& [step, loss] : rest) EXPECT_EQ(loss, expected.at(step)) << "step " << step;
  EXPECT_EQ(rest.rbegin()->first, 300);
  EXPECT_EQ(
      run_command({kBin + "trireme", "ckpt", "diff", folder / "whole", folder / "killed"}).code, 0);
}

TEST(Examples, ExpertsOnRanksGiveTheLossesOfOneRank) {
  for (const int ranks : {1, 2, 4}) {
    const auto result = run_example("15_experts", ranks);
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("one rank alone differs by less than 1e-10"));
  }
}

TEST(Examples, AShardedModelGoesOnOnAnotherNumberOfRanks) {
  const Scratch folder;
  const auto run = [&](int ranks, const std::string& name, const std::string& steps) {
    return run_command({kBin + "trireme", "run", "-n", std::to_string(ranks), kBin + "11_sharded",
                        folder / name, steps});
  };
  const auto whole = run(4, "whole", "40");
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("rank 3 of 4 keeps"));
  const auto expected = losses_in(whole.out);
  ASSERT_EQ(expected.size(), 40u);
  EXPECT_LT(std::stod(expected.at(40).substr(5)), std::stod(expected.at(1).substr(5)) - 0.1);
  // The same mesh gives the same bits, another one the same losses but for rounding.
  ASSERT_EQ(run(4, "cut", "20").code, 0);
  ASSERT_EQ(run_command({"cp", "-r", folder / "cut", folder / "other"}).code, 0);
  const auto same = run(4, "cut", "40"), other = run(2, "other", "40");
  EXPECT_THAT(same.out, HasSubstr("continues from step 20"));
  EXPECT_THAT(other.out, HasSubstr("continues from step 20"));
  for (const auto& [step, loss] : losses_in(same.out)) EXPECT_EQ(loss, expected.at(step)) << step;
  const auto others = losses_in(other.out);
  ASSERT_EQ(others.size(), 20u) << other.err;
  for (const auto& [step, loss] : others)
    EXPECT_NEAR(std::stod(loss.substr(5)), std::stod(expected.at(step).substr(5)), 1e-4) << step;
}

TEST(Programs, DataMakeReplacesNothingUnlessItIsForced) {
  const Scratch folder;
  const std::string file = folder / "deep/er/tokens.bin";
  const auto make = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {kBin + "trireme", "data", "make", file, "--vocab", "32"});
    return run_command(more);
  };
  EXPECT_EQ(make({"--tokens", "1K"}).code, 0);
  const std::string before = bytes_of(file);
  EXPECT_EQ(before.size(), 2000u);
  const auto again = make({"--tokens", "2K"});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("is there already; name another file, or add --force"));
  EXPECT_EQ(bytes_of(file), before);
  EXPECT_EQ(make({"--tokens", "2K", "--force"}).code, 0);
  EXPECT_EQ(bytes_of(file).size(), 4000u);
  const auto megatron = make({"--kind", "megatron"});
  EXPECT_EQ(megatron.code, 2) << "its .bin is there";
  const auto wrong = make({"--tokens", "1e6"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.err, "trireme data: --tokens 1e6: write a whole number, such as 1000000 or 1M\n");
}

TEST(Programs, BenchPrintsOneCheckedLinePerSize) {
  for (const std::string backend : {"shm", "tcp", "local"}) {
    const auto result =
        run_command({kBin + "trireme", "bench", "comm", "--ranks", "2", "--backend", backend,
                     "--op", "all_reduce,all_gather", "--bytes", "8,64K", "--repeat", "3"});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 4) << result.out;
    EXPECT_THAT(result.out, HasSubstr("\"bench\":\"comm\",\"op\":\"all_reduce\",\"backend\":\"" +
                                      backend + "\",\"ranks\":2,\"bytes\":8,"));
  }
}

TEST(Programs, BenchRefusesWhatItDoesNotKnow) {
  const auto result = run_command({kBin + "trireme", "bench", "comm", "--op", "all_sum"});
  EXPECT_NE(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr("all_sum"));
}

TEST(Programs, DoctorFindsThisMachineWell) {
  const auto result = run_command({kBin + "trireme", "doctor"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("libtorch"));
  // With a GPU or without, these lines are there; what they say depends on the machine.
  EXPECT_THAT(result.out, HasSubstr("\nCUDA in libtorch"));
  EXPECT_THAT(result.out, HasSubstr("\nCUDA driver"));
}

}  // namespace
}  // namespace trireme::test
