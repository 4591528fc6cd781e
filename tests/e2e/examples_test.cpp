// Every example is run as its first comment says, and must print what it promises.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/command.h"

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
  EXPECT_THAT(result.out, HasSubstr("once an epoch; resuming gave the same ones"));
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
  EXPECT_THAT(result.out, HasSubstr("at most 3 micro-batches alive; as one rank alone"));
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
}

}  // namespace
}  // namespace trireme::test
