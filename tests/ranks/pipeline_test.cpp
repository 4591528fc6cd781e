// Cutting the depth must not change the answer, whatever the schedule and whatever else is cut.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "support/cuts.h"
#include "trireme/core/error.h"
#include "trireme/pipeline/generators.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using ::testing::HasSubstr;

struct Named {
  const char* schedule;
  int stages_per_rank;
};
const Named kSchedules[] = {{"gpipe", 1},      {"1f1b", 1},  {"interleaved", 2}, {"looped-bfs", 2},
                            {"zb-h1", 1},      {"zb-v", 2},  {"dualpipe-v", 2}};

TEST(Pipeline, EveryScheduleGivesTheAnswerOfOneRank) {
  for (const auto& [schedule, per_rank] : kSchedules)
    check({.batch = 12, .micro = 1, .pipe = 3, .stages_per_rank = per_rank, .layers = 6,
           .schedule = schedule});
}

}  // namespace
}  // namespace trireme::test
