// Cutting the depth must not change the answer, whatever the schedule and whatever else is cut.
#include "trireme/parallel/pipeline.h"

#include <gmock/gmock.h>

#include <torch/torch.h>

#include "support/cuts.h"
#include "trireme/core/error.h"
#include "trireme/nn/bind.h"
#include "trireme/nn/recompute.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/pipeline/generators.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/text.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Named {
  const char* schedule;
  int stages_per_rank;
};
const Named kSchedules[] = {{"gpipe", 1}, {"1f1b", 1}, {"interleaved", 2}, {"looped-bfs", 2},
                            {"zb-h1", 1}, {"zb-v", 2}, {"dualpipe-v", 2}};

/// Every schedule with every degree of the other axes, tied and not, recomputed and not, with
/// micro-batches that are uneven: each pair of these at least once.
TEST(Pipeline, EveryScheduleGivesTheAnswerOfOneRankWhateverElseIsCut) {
  const char* const recompute[] = {"none", "block", "selective"};
  struct Mix {
    int replica, shard, tensor;
  };
  const Mix mixes[] = {{1, 1, 1}, {1, 1, 2}, {2, 1, 1}, {1, 2, 1}, {2, 1, 2}, {1, 2, 2}};
  int number = 0;
  for (const auto& [schedule, per_rank] : kSchedules) {
    for (const int pipe : {2, 3, 4}) {
      for (int turn = 0; turn < 2; ++turn, ++number) {
        // The other ways take turns.
        const Mix& mix = mixes[(number + number / 6) % 6];
        const int data = mix.replica * mix.shard, micros = 2 * pipe;
        const bool uneven = (number / 2 + number) % 2 == 1;
        check({.replica = mix.replica,
               .shard = mix.shard,
               .tensor = mix.tensor,
               .what = number % 5 == 0   ? "gradients"
                       : number % 7 == 0 ? "optimizer"
                                         : "parameters",
               .sequence = number % 3 != 1,
               .tie = turn == 0,
               .masked = number % 4 == 0,
               .kv_heads = number % 4 == 1 ? 2 : 4,
               .batch = 2 * micros * data - (uneven ? 1 : 0),  // a micro-batch has a row less
               .recompute = recompute[(number + number / 3) % 3],
               .micro = 2,
               .pipe = pipe,
               .stages_per_rank = per_rank,
               .layers = 6,
               .schedule = schedule,
               .balance = number % 6 == 5 ? "time" : "params",
               .keep_gathered = number % 4 < 2});
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::test
