// Replicas begin alike and stay alike, and whoever is not is named.
#include <gmock/gmock.h>

#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include "models/registry.h"
#include "support/backends.h"
#include "trireme/core/error.h"
#include "trireme/nn/bind.h"
#include "trireme/parallel/data_parallel.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using parallel::DataParallel;
using parallel::Micro;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Replicas, OfDifferentModelsAreRefusedWithTheFirstDifference) {
  run_world(kThreads, 3, [&](const Communicator& world) {
    torch::nn::Sequential model(torch::nn::Linear(4, world.rank() == 2 ? 6 : 5),
                                torch::nn::Linear(5, 2));
    std::string said;
    try {
      DataParallel replicas(*model, world);
    } catch (const CommError& error) {
      said = error.what();
    }
    EXPECT_THAT(said,
                AllOf(HasSubstr("'0.weight' [5, 4] Float"), HasSubstr("[6, 4] Float on rank 2")));
  });
}

TEST(Replicas, StartFromTheFirstRanksValues) {
  run_world(kThreads, 3, [&](const Communicator& world) {
    torch::nn::BatchNorm1d model(4);
    const torch::NoGradGuard guard;
    model->weight.fill_(world.rank());
    model->running_mean.fill_(world.rank() + 7);
    DataParallel replicas(*model, world);
    EXPECT_EQ(model->weight[0].item<float>(), 0);
    EXPECT_EQ(model->running_mean[0].item<float>(), 7);
  });
}

TEST(Replicas, StartFromTheSameCopiesOfAHead) {
  config::Config config;
  config.model.layers = 1;
  config.model.hidden = 16;
  config.model.heads = 4;
  config.model.kv_heads = 2;  // over tensor 4: each on two ranks
  run_world(kThreads, 4, [&](const Communicator& world) {
    const Mesh mesh(world, {.tensor = 4});
    const auto model = models::make_model(config, mesh);
    {
      const at::NoGradGuard guard;
      for (at::Tensor& one : model->parameters()) one.fill_(world.rank());
    }
    const parallel::DataParallel replicas(*model, mesh);
    replicas.check_same();
    const at::Tensor weight = model->named_parameters()["h.0.attn.c_attn.weight"];
    EXPECT_EQ(weight[0][0].item<float>(), static_cast<float>(world.rank())) << "a query of its own";
    EXPECT_EQ(weight[-1][0].item<float>(), static_cast<float>(world.rank() / 2 * 2));
  });
}

TEST(Replicas, LeaveNoHookBehindWhereTheyCannotAttach) {
  run_world(kThreads, 1, [&](const Communicator& world) {
    torch::nn::Linear body(2, 2), head(2, 1);
    torch::nn::Sequential both(body, head);
    const parallel::DataParallel of_head(*head, world);
    EXPECT_THROW(parallel::DataParallel(*both, world), c10::Error);
    for (const at::Tensor& one : body->parameters())
      EXPECT_EQ(torch::autograd::impl::post_acc_grad_hooks(one), nullptr);
  });
}

TEST(Replicas, HaveTheBuffersOfTheFirstAfterEveryStep) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    torch::nn::BatchNorm1d model(1);
    auto flags = model->register_buffer("flags", torch::tensor({true, false}));
    DataParallel replicas(*model, world);
    for (int step = 1; step <= 2; ++step) {
      const auto y = model(torch::arange(4.0).view({4, 1}) + 10 * world.rank());
      flags.fill_(world.rank() == 0 ? step == 1 : true);
      replicas.backward({y.pow(2).sum(), at::tensor(4.0, at::kDouble)});
      EXPECT_NEAR(model->running_mean.item<double>(),
                  (step == 1 ? 0.15 : 0.285) + world.rank() * 1.0, 1e-6)
          << "until then each has its own";
      replicas.finish();
      EXPECT_NEAR(model->running_mean.item<double>(), step == 1 ? 0.15 : 0.285, 1e-6);
      EXPECT_EQ(flags[0].item<bool>(), step == 1);
      EXPECT_EQ(model->num_batches_tracked.item<int64_t>(), step);
    }
    replicas.check_same();
    if (world.rank() == 1) model->running_var += 1e-6;
    std::string said;
    try {
      replicas.check_same();
    } catch (const CommError& error) {
      said = error.what();
    }
    EXPECT_THAT(said, AllOf(HasSubstr("'running_var' of rank 1"), HasSubstr("drifted")));
  });
}

TEST(Replicas, ForgetAStepWhoseForwardThrew) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    torch::nn::Linear model(2, 1);
    model->to(torch::kDouble);
    DataParallel replicas(*model, world);
    const auto rows = torch::arange(4.0, torch::kDouble).view({2, 2}) + world.rank();
    const auto backward = [&](double times, Micro micro) {
      replicas.backward({model(rows * times).sum(), at::tensor(2.0, at::kDouble)}, micro);
    };
    backward(1, Micro::Last);
    EXPECT_THROW(replicas.discard(), c10::Error) << "others may count on it: finish is due";
    replicas.finish();
    const auto wanted = model->weight.grad().clone();
    backward(7, Micro::More);
    // Here the user's forward throws, on all ranks; they go on with the next batch.
    replicas.discard();
    backward(1, Micro::Last);
    const auto totals = replicas.finish();
    EXPECT_EQ(totals.weight, 4);
    EXPECT_TRUE(model->weight.grad().equal(wanted)) << model->weight.grad() << wanted;
  });
}

TEST(Replicas, WarnOnceThatNothingCounted) {
  testing::internal::CaptureStderr();
  run_world(kThreads, 2, [&](const Communicator& world) {
    torch::nn::Linear model(2, 1);
    DataParallel replicas(*model, world);
    for (int step = 0; step < 5; ++step) {
      replicas.backward({model(torch::ones({1, 2})).sum(), at::tensor(0.0, at::kDouble)});
      replicas.finish();
      EXPECT_FALSE(model->weight.grad().defined());
    }
  });
  const std::string said = testing::internal::GetCapturedStderr();
  std::size_t times = 0;
  for (auto at = said.find("weight of a step is 0"); at != said.npos;
       at = said.find("weight of a step is 0", at + 1))
    ++times;
  EXPECT_EQ(times, 1u) << said;
}

TEST(Replicas, ThatDriftedAreNamed) {
  run_world(kThreads, 3, [&](const Communicator& world) {
    torch::nn::Linear model(4, 4);
    DataParallel replicas(*model, world);
    replicas.check_same();
    if (world.rank() == 1) {
      const torch::NoGradGuard guard;
      model->bias[2] += 1e-6;
    }
    std::string said;
    try {
      replicas.check_same();
    } catch (const CommError& error) {
      said = error.what();
    }
    EXPECT_THAT(said, AllOf(HasSubstr("'bias' of rank 1"), HasSubstr("drifted")));
  });
}

TEST(Replicas, WantBackwardToBeCalledThroughThem) {
  run_world(kThreads, 1, [&](const Communicator& world) {
    torch::nn::Linear model(2, 1);
    DataParallel replicas(*model, world);
    EXPECT_THROW(model(torch::ones({1, 2})).sum().backward(), c10::Error);
  });
}

TEST(Replicas, KeepTheOrderOfTheirBuckets) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2));
    std::vector<std::string> observed;
    {
      DataParallel replicas(*model, world);
      EXPECT_TRUE(replicas.gradients().order().empty());
      replicas.backward({model->forward(torch::ones({2, 3})).sum(), at::tensor(2.0, at::kDouble)});
      replicas.finish();
      observed = replicas.gradients().order();
    }
    ASSERT_EQ(observed.size(), 4u);
    EXPECT_EQ(observed[0].substr(0, 2), "1.") << "backward reaches the last layer first";
    DataParallel again(*model, world);
    again.gradients().set_order(observed);
    EXPECT_EQ(again.gradients().order(), observed);
  });
}

TEST(Bind, GivesAndTakesMemoryWithoutChangingWhoAParameterIs) {
  auto weight = torch::zeros({3, 4}).requires_grad_();
  const auto before = weight;
  const auto y = (weight * weight).sum();
  void* place = nullptr;
  {
    const auto home = torch::ones({20}).narrow(0, 4, 12);
    place = home.data_ptr();
    nn::bind(weight, home);
  }
  EXPECT_TRUE(before.is_same(weight));
  EXPECT_EQ(weight.data_ptr(), place) << "the memory went with the tensor that was bound";
  y.backward();  // the graph sees the new memory
  EXPECT_EQ(weight.grad().sum().item<float>(), 24);
  nn::unbind(weight, "gone for a test");
  EXPECT_FALSE(nn::is_bound(weight));
  if (!nn::unbound_reads_throw()) return;
  EXPECT_THAT([&] { (void)weight.sum().item<float>(); },
              ::testing::ThrowsMessage<std::exception>(::testing::HasSubstr("gone for a test")));
}
}  // namespace
}  // namespace trireme::test
