// Schedules go to PyTorch and come back; PyTorch's own are read, and are ours action by action.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/command.h"
#include "support/schedules.h"
#include "support/scratch.h"
#include "support/training.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/text.h"

namespace trireme::pipeline {
namespace {

namespace fs = std::filesystem;
using test::made;
using test::Scratch;
using ::testing::HasSubstr;

/// Does Python have a torch whose schedules know overlapped pairs and reductions?
bool available() {
  return test::run_command({test::python_with_torch(), "-c",
                            "from torch.distributed.pipelining.schedules import OVERLAP_F_B, "
                            "REDUCE_GRAD, ScheduleDualPipeV"})
             .code == 0;
}

/// "zb-v.4.8.2.comms.csv" in its parts.
struct FileName {
  std::string name, form;
  Shape shape;

  explicit FileName(const fs::path& file) {
    std::vector<std::string> parts{""};
    for (const char c : file.filename().string())
      c == '.' ? parts.emplace_back() : (parts.back().push_back(c), parts.back());
    name = parts[0], form = parts[4];
    shape = {std::stoi(parts[1]), std::stoi(parts[2]), std::stoi(parts[3])};
  }
};

std::string file_name(const Schedule& schedule, const char* form) {
  return schedule.name + "." + std::to_string(schedule.ranks()) + "." +
         std::to_string(schedule.micros) + "." +
         std::to_string(schedule.stages() / schedule.ranks()) + "." + form + ".csv";
}

/// What stays of a schedule when only the computation is looked at.
Schedule computation(Schedule schedule) {
  for (Program& program : schedule.programs)
    std::erase_if(program, [](const Action& action) { return !is_compute(action.act); });
  return schedule;
}

struct TorchSchedule : testing::Test {
  static void SetUpTestSuite() {
    if (!available()) return;
    scratch = std::make_unique<Scratch>();
    fs::create_directory(*scratch / "ours");
    for (const std::string_view name : names())
      for (int ranks = 1; ranks <= 4; ++ranks)
        for (const int micros : {1, 2, 5, 8})
          for (const int stages : {1, 2, 3})
            if (const auto schedule = made(name, {ranks, micros, stages}))
              if (is_synchronous(name)) put(*schedule);
    const auto result =
        test::run_command({test::python_with_torch(),
                           TRIREME_SOURCE_DIR "/tests/e2e/torch_schedule.py", scratch->path()},
                          {.deadline = std::chrono::minutes(3)});
    EXPECT_EQ(result.code, 0) << result.err;
  }
  static void TearDownTestSuite() { scratch.reset(); }

  void SetUp() override {
    if (!scratch) GTEST_SKIP() << "no torch for Python, or one that is older than 2.13";
  }

  /// Compute only, with transfers (which PyTorch can play), and complete.
  static void put(const Schedule& schedule) {
    const auto write = [&](const char* form, const Schedule& what) {
      test::put_bytes(*scratch / "ours/" + file_name(schedule, form), to_csv(what));
    };
    write("compute", schedule);
    if (schedule.ranks() > 1) write("comms", with_transfers(schedule));
    write("whole", with_reduces(with_unshards(with_transfers(schedule))));
  }

  static std::vector<fs::path> files(const std::string& folder) {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(*scratch / folder))
      found.push_back(entry.path());
    return found;
  }

  static std::unique_ptr<Scratch> scratch;
};
std::unique_ptr<Scratch> TorchSchedule::scratch;

TEST_F(TorchSchedule, OursComeBackEqual) {
  int count = 0;
  for (const fs::path& file : files("ours")) {
    const std::string back = *scratch / "back/" + file.filename().string();
    EXPECT_EQ(parse_csv("", test::bytes_of(back)), parse_csv("", test::bytes_of(file))) << file;
    ++count;
  }
  EXPECT_GT(count, 200);
}

TEST_F(TorchSchedule, TheirsAreReadVerifiedAndOurs) {
  int count = 0, same = 0;
  for (const fs::path& file : files("torch")) {
    const FileName is(file);
    if (is.name == "1f1b") continue;  // below
    Schedule schedule = read_csv(file);
    ++count;
    EXPECT_NO_THROW(verify(schedule)) << file;
    EXPECT_EQ(schedule.micros, is.shape.micros) << file;
    EXPECT_EQ(schedule.stages(), is.shape.ranks * is.shape.stages_per_rank) << file;
    // What they have computed, we make: the same actions in the same order on every rank.
    if (is.name == "interleaved-zb") continue;  // not one of ours
    schedule.name = is.name;
    EXPECT_EQ(computation(schedule), make(is.name, is.shape)) << file;
    ++same;
  }
  EXPECT_GT(count, 150);
  EXPECT_GT(same, 120);
}

// PyTorch's text of 1F1B begins the last rank with micro-batch 1 and ends with one that does not
// exist (Schedule1F1B._get_pipeline_order of 2.13; what it runs is right). The others are ours.
TEST_F(TorchSchedule, TheirOneFOneBIsOursButForTheirLastRank) {
  for (const fs::path& file : files("torch")) {
    const FileName is(file);
    if (is.name != "1f1b") continue;
    const Schedule theirs = computation(read_csv(file)), ours = make("1f1b", is.shape);
    for (size_t rank = 0; rank + 1 < ours.programs.size(); ++rank)
      EXPECT_EQ(theirs.programs[rank], ours.programs[rank]) << file;
    EXPECT_THAT(test::outcome_of<ScheduleError>([&] { verify(theirs); }), HasSubstr("never does"));
  }
}

}  // namespace
}  // namespace trireme::pipeline
