// kill -9 of a rank while tokens travel to their experts: all others name it, and nothing is left.
#include <gmock/gmock.h>
#include <signal.h>

#include <torch/torch.h>

#include "support/failing_world.h"
#include "support/leftovers.h"
#include "trireme/nn/moe.h"
#include "trireme/nn/parameters.h"

namespace trireme::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

struct Root : torch::nn::Module {
  explicit Root(const Mesh& mesh) {
    const nn::MoeImpl::Options options{.router = {.width = 64, .experts = 6, .top_k = 2},
                                       .experts = {.ffn = 32}};
    moe = register_module("moe", nn::Moe(options));
    nn::cut(*this, nn::moe_plan("moe", options), mesh);
    nn::initialize(*this, 3);
  }
  nn::Moe moe{nullptr};
};

TEST(ExpertsFailure, ARankThatDiesInAnExchangeIsNamedByAll) {
  Leftovers left;
  for (const char* backend : {"shm", "tcp"}) {
    for (const int victim : {0, 1}) {
      SCOPED_TRACE(testing::Message() << backend << ", rank " << victim);
      run_ranks(3,
                [&](const Rank& self) {
                  const auto world = join(self, backend);
                  Root root(Mesh(world, {.replica = 3, .expert = 3}));
                  const Doing step{"experts", "all_to_all", [&](const comm::Communicator&) {
                                     const auto x = torch::randn({4, 64, 64}).requires_grad_();
                                     root.moe->forward(x).square().sum().backward();
                                   }};
                  if (self.rank == victim) return fall_while(self, SIGKILL, step, world, 3, 700us);
                  const Report report = until_it_fails(self, [&] { step.once(world); });
                  EXPECT_EQ(report.cause, name_of_fallen(self, victim) + " died");
                  EXPECT_THAT(report.text, HasSubstr("all_to_all"));
                  EXPECT_THAT(report.text, HasSubstr("on 'expert'"));
                },
                {.deadline = kLongest * 2, .dies = {victim}});
      left.expect_none();
    }
  }
}

}  // namespace
}  // namespace trireme::test
