// A step that is not finite on one rank is skipped by all, and spoils nothing.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <cmath>

#include "support/tiny_training.h"
#include "trireme/core/error.h"
#include "trireme/optim/update_control.h"

namespace trireme::test::precision {
namespace {

using comm::Communicator;
using config::Dtype;
using config::ShardedState;
using ::testing::HasSubstr;

TEST(Overflow, OfOneRankIsSkippedByAll) {
  const auto level = [](ShardedState what) {
    return [what](config::Config& config) { config.memory.shard = what; };
  };
  const MeshCase setups[] = {{{.replica = 2}},
                             {{.shard = 2}, level(ShardedState::Optimizer)},
                             {{.shard = 2}, level(ShardedState::Gradients)},
                             {{.shard = 2}, level(ShardedState::Parameters)},
                             {{.tensor = 2}},
                             {{.pipe = 2}},
                             {{.pipe = 2, .replica = 2, .tensor = 2}}};
  for (const MeshCase& setup : setups) {
    for (const int bad : {0, setup.degrees.world() - 1}) {
      SCOPED_TRACE(to_string(setup.degrees) + ", rank " + std::to_string(bad));
      run_world(kThreads, setup.degrees.world(), [&](const Communicator& world) {
        Training run(gpt_config(Dtype::Float16, setup), world, setup.degrees);
        EXPECT_FALSE(run.step(1).skipped);
        const auto before = run.state();
        const auto steps = run.trainer.state().extra.at("optimizer");
        // What a product that is too large leaves behind, in one gradient of one rank.
        at::Tensor victim = run.trainer.parameters().back().tensor;
        unsigned hook = 0;
        if (world.rank() == bad)
          hook = victim.register_hook([](const at::Tensor& gradient) {
            return gradient * std::numeric_limits<double>::infinity();
          });
        const auto skipped = run.step(2);
        if (world.rank() == bad) victim.remove_hook(hook);
        EXPECT_TRUE(skipped.skipped);
        EXPECT_EQ(skipped.loss_scale, 65536);
        EXPECT_TRUE(std::isfinite(skipped.loss));
        EXPECT_TRUE(same_bits(run.state(), before));
        EXPECT_EQ(run.trainer.state().extra.at("optimizer"), steps);
        const auto next = run.step(3);
        EXPECT_FALSE(next.skipped);
        EXPECT_EQ(next.loss_scale, 32768);
        EXPECT_EQ(next.lr, skipped.lr) << "the schedule has not moved";
        EXPECT_LT(next.loss, 10);
        EXPECT_FALSE(same_bits(run.state(), before));
        run.trainer.check_same();
      });
    }
  }
}

TEST(Overflow, WithoutAScaleEndsTheRunAndSpoilsNothing) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    Training run(gpt_config(Dtype::BFloat16, {}), world, {.replica = 2});
    run.step(1);
    const auto before = run.state();
    at::Tensor victim = run.trainer.parameters().front().tensor;
    if (world.rank() == 1)
      victim.register_hook([](const at::Tensor& gradient) {
        return gradient * std::numeric_limits<double>::quiet_NaN();
      });
    for (const int64_t step : {2, 3}) {  // the second one, too: the verdict stays
      try {
        run.step(step);
        ADD_FAILURE() << "step " << step;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("nothing was updated"));
        EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("loss scale")));
      }
      EXPECT_TRUE(same_bits(run.state(), before));
    }
  });
}

TEST(UpdateControl, FollowsTheRulesOfALossScale) {
  optim::UpdateControl control({.rates = {0.1, 0.2, 0.3, 0.4},
                                .clip = 1,
                                .scales = true,
                                .first_scale = 1024,
                                .growth = 2,
                                .expected_weight = 7},
                               c10::kCPU);
  const auto step = [&](double squares) {
    const auto update = control.decide(torch::tensor({4.0, 8.0, squares}, torch::kDouble));
    return std::tuple(update.rate.item<double>(), update.divisor.item<double>(),
                      update.skip.item<float>());
  };
  // Losses are multiplied by 1024 / 8. A norm of 512 x 2 is one of 2, which is clipped to 1.
  EXPECT_EQ(control.loss_scale().item<float>(), 128);
  const auto [rate, divisor, skip] = step(1024.0 * 1024);
  EXPECT_EQ(rate, 0.1);
  EXPECT_NEAR(divisor, 512 * 2, 1e-3);
  EXPECT_EQ(skip, 0);
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(std::get<2>(step(infinite)), 1);
  EXPECT_EQ(control.state().scale, 512) << "halved, and the good step before is forgotten";
  EXPECT_EQ(std::get<0>(step(1)), 0.2) << "a skipped step takes no rate";
  EXPECT_EQ(control.state().scale, 512);
  step(1);
  EXPECT_EQ(control.state().scale, 1024) << "two good steps";
  EXPECT_EQ(control.state().updates, 3);
  EXPECT_EQ(control.state().skipped, 1);
  optim::UpdateControl resumed({.rates = {0.1, 0.2, 0.3, 0.4}, .scales = true}, c10::kCPU);
  resumed.restore(control.to_json(), 0);
  EXPECT_EQ(resumed.to_json(), control.to_json());
  optim::UpdateControl plain({.rates = {0.1}}, c10::kCPU);
  plain.restore(control.to_json(), 0);  // another precision: no scale
  EXPECT_EQ(plain.state().updates, 3);
  EXPECT_FALSE(plain.loss_scale().defined());
}

TEST(Overflow, ThatNoScaleCuresEndsTheRunAndSaysSince) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    config::Config config = gpt_config(Dtype::Float16, {});
    config.precision.loss_scale = 1;
    Training run(config, world, {.replica = 2}, 40);
    run.step(1);
    if (world.rank() == 1)
      run.trainer.parameters().front().tensor.register_hook([](const at::Tensor& gradient) {
        return gradient * std::numeric_limits<double>::quiet_NaN();
      });
    std::string said;
    int64_t step = 2;
    try {
      for (; step < 40; ++step) run.step(step);
    } catch (const Error& error) {
      said = error.what();
    }
    EXPECT_EQ(step, 12) << "1 / 2^11 is too small";
    EXPECT_THAT(said, HasSubstr("as in all steps since 2: no loss scale helps"));
    EXPECT_THAT(said, HasSubstr("continue from a checkpoint before step 2"));
  });
}

}  // namespace
}  // namespace trireme::test::precision
