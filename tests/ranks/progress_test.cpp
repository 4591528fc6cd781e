// What people are told: the bar at every width, and which memory a run takes.
#include "trireme/train/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <limits>

#include "support/scratch.h"
#include "trireme/train/expert_loads.h"
#include "trireme/train/footprint.h"
#include "trireme/train/lines_file.h"

namespace trireme::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Bar, ShrinksFirstThenGoesWhatMattersLeast) {
  StepReport report;
  report.step = 300;
  report.loss = 3.5;
  report.tokens_per_s = 58'200;
  report.floor = 3.25;
  const auto bar = [&](int columns) { return draw_bar(report, 1200, 42, columns, "tokens"); };
  EXPECT_EQ(bar(200),
            "[======                  ] 300/1200  loss 3.5000 (floor 3.2500)  58.2k tokens/s  0:42 "
            "left");
  EXPECT_EQ(bar(80),
            "[===          ] 300/1200  loss 3.5000 (floor 3.2500)  58.2k tokens/s  0:42 left");
  EXPECT_EQ(bar(68), "300/1200  loss 3.5000 (floor 3.2500)  58.2k tokens/s  0:42 left");
  EXPECT_EQ(bar(50), "300/1200  loss 3.5000  58.2k tokens/s  0:42 left");
  EXPECT_EQ(bar(40), "300/1200  loss 3.5000  0:42 left");
  EXPECT_EQ(bar(25), "300/1200  loss 3.5000");
  EXPECT_EQ(bar(10), "300/1200 ");
  for (int columns = 1; columns < 120; ++columns)
    EXPECT_LT(bar(columns).size(), static_cast<std::size_t>(std::max(2, columns)));
}

TEST(Lines, SayTheMeanSpeedSinceTheLineBefore) {
  testing::internal::CaptureStdout();
  {
    Progress progress(0, 4, 2, "images");
    int64_t step = 0;
    for (const double ms : {100, 300, 50, 50}) {
      StepReport report;
      report.step = ++step;
      report.weight = 10;
      report.step_ms = ms;
      report.tokens_per_s = report.weight / ms * 1e3;
      progress.show(report);
    }
  }
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_THAT(said, HasSubstr("step 2/4  loss 0.0000  50 images/s"));
  EXPECT_THAT(said, HasSubstr("step 4/4  loss 0.0000  200 images/s"));
}

/// A limit on the size of files stands for a disk that is full.
struct FileLimit {
  rlimit before{};
  void (*handler)(int);
  explicit FileLimit(rlim_t most) : handler(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before);
    const rlimit now{most, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before);
    ::signal(SIGXFSZ, handler);
  }
};

TEST(Lines, WaitInMemoryWhileTheDiskIsFullAndWhatFindsNoRoomIsNamed) {
  const test::Scratch folder;
  std::vector<std::string> told;
  const auto tell = [&](const std::string& sentence) { told.push_back(sentence); };
  const auto line = [](int64_t step) { return R"({"step":)" + std::to_string(step) + "}"; };
  std::string wanted;
  {
    LinesFile file(folder / "lines", 0, tell, /*most_waiting=*/36);  // three lines
    const auto add = [&](int64_t step, bool is_kept = true) {
      file.add(step, line(step));
      if (is_kept) wanted += line(step) + "\n";
    };
    add(1);
    {
      const FileLimit full(17);  // in the middle of the second line
      for (const int64_t step : {2, 3, 4}) add(step);
      EXPECT_EQ(test::bytes_of(folder / "lines"), line(1) + "\n") << "no half lines";
    }
    add(5);
    ASSERT_EQ(told.size(), 2u);
    EXPECT_THAT(told[0], HasSubstr("its lines wait in memory"));
    EXPECT_THAT(told[1], HasSubstr("is written again; nothing is missing"));
    {
      const FileLimit full(1);
      for (const int64_t step : {6, 7, 8}) add(step);
      for (const int64_t step : {9, 10}) add(step, /*is_kept=*/false);
    }
    add(11);
    EXPECT_THAT(told.back(), HasSubstr("is written again; it has no lines of steps 9 to 10"));
    add(12);
    EXPECT_EQ(test::bytes_of(folder / "lines"), wanted);
  }
  told.clear();
  {
    const FileLimit full(static_cast<rlim_t>(wanted.size()));
    LinesFile file(folder / "lines", 20, tell, 36);
    EXPECT_THAT(told.back(), HasSubstr("has no lines of steps 13 to 20"));
    for (const int64_t step : {21, 22}) file.add(step, line(step));
  }
  EXPECT_THAT(told.back(), HasSubstr("to the end; it has no lines of steps 21 to 22"));
}

TEST(Lines, OfExpertsAreJsonAlsoWhereALossIsNoNumber) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string text = to_json(
      {nn::ExpertLoad{.layer = "h.0.moe.router", .tokens = {3, 1}, .balance = nan, .z = 2}});
  EXPECT_THAT(text, HasSubstr(R"("load":[0.75,0.25],"max":1.5)"));
  EXPECT_THAT(text, HasSubstr(R"("balance":null,"z":2)"));
}

TEST(Memory, OfTheHostIsToldFromTheGpus) {
  const Footprint memory{.parameters = 100 << 20,
                         .gradients = 100 << 20,
                         .optimizer = 200 << 20,
                         .activations = 50 << 20,
                         .copy = 30 << 20};
  const std::string cpu = to_text(memory, {}, "");
  EXPECT_THAT(cpu, HasSubstr("together                 450 MiB"));
  EXPECT_THAT(cpu, Not(HasSubstr("GPU")));
  const std::string gpu = to_text(memory, {.gpu = true}, "");
  EXPECT_THAT(gpu, HasSubstr("together                 450 MiB\nhost memory of the same rank:\n"));
  const std::string offloaded = to_text(memory, {.gpu = true, .offload = true}, "");
  EXPECT_THAT(offloaded, HasSubstr("together                 250 MiB\nhost memory of the same"));
  EXPECT_THAT(offloaded, HasSubstr("together                 330 MiB"));
}

}  // namespace
}  // namespace trireme::train
