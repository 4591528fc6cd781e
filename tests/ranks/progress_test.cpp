// What people are told: the bar at every width, and which memory a run takes.
#include "trireme/train/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/train/footprint.h"

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
  const auto bar = [&](int columns) { return draw_bar(report, 1200, 42, columns); };
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
