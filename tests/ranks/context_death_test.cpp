// A rank that is killed in the middle of a ring, an all-to-all or a gather of keys is named by all.
#include <gmock/gmock.h>
#include <signal.h>

#include <torch/torch.h>

#include "support/failing_world.h"
#include "support/leftovers.h"
#include "trireme/nn/context_attention.h"

namespace trireme::test {
namespace {

using namespace std::chrono_literals;

/// Forward and backward, again and again.
Doing attending(nn::ContextKind kind) {
  return {.name = "attention", .said = "", .once = [kind](const comm::Communicator& world) {
            const Positions mine = head_and_tail(600, world.size(), world.rank());
            const auto leaf = [&] {
              return torch::ones({2, 4, mine.count(), 32}).requires_grad_();
            };
            const at::Tensor y =
                nn::context_attention({leaf(), leaf(), leaf()}, {world, kind}, {.positions = mine});
            y.sum().backward();
          }};
}

TEST(ContextDeath, IsNamedByEveryoneAndLeavesNothing) {
  Leftovers left;
  for (const nn::ContextKind kind :
       {nn::ContextKind::Ring, nn::ContextKind::Ulysses, nn::ContextKind::Gather}) {
    for (const int victim : {0, 2}) {
      run_ranks(3,
                [&](const Rank& self) {
                  at::set_num_threads(1);
                  const auto world = join(self, "shm");
                  const Doing doing = attending(kind);
                  if (self.rank == victim) return fall_while(self, SIGKILL, doing, world, 3, 900us);
                  const Report report = until_it_fails(self, [&] { doing.once(world); });
                  EXPECT_EQ(report.cause, name_of_fallen(self, victim) + " died");
                },
                {.deadline = kLongest * 2, .dies = {victim}});
      left.expect_none();
    }
  }
}

}  // namespace
}  // namespace trireme::test
