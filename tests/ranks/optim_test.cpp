// Optimizers, clipping and schedules against torch and their formulas.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <cmath>
#include <set>

#include "support/tiny.h"
#include "trireme/optim/learning_rate.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data_parallel.h"

namespace trireme::test {
namespace {

std::vector<optim::Slot> slots_of(torch::nn::Module& module) {
  std::vector<optim::Slot> slots;
  for (const auto& item : module.named_parameters())
    slots.push_back({item.key(), item.value(), optim::is_decayed(item.value().sizes())});
  return slots;
}

TEST(Optimizers, GiveTorchsNumbers) {
  for (const bool adam : {true, false}) {
    torch::manual_seed(1);
    torch::nn::Linear ours(33, 7), theirs(33, 7);
    ours->to(torch::kDouble);
    theirs->to(torch::kDouble);
    {
      const torch::NoGradGuard guard;
      theirs->weight.copy_(ours->weight);
      theirs->bias.copy_(ours->bias);
    }
    auto mine =
        adam ? optim::make_adamw(slots_of(*ours), {}) : optim::make_sgd(slots_of(*ours), {});
    std::unique_ptr<torch::optim::Optimizer> torchs;
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (const auto& p : {theirs->weight, theirs->bias}) {
      const double decay = p.dim() >= 2 ? 0.1 : 0;
      std::unique_ptr<torch::optim::OptimizerOptions> options;
      if (adam)
        options = std::make_unique<torch::optim::AdamWOptions>(
            torch::optim::AdamWOptions(0.01).betas({0.9, 0.95}).weight_decay(decay));
      else
        options = std::make_unique<torch::optim::SGDOptions>(
            torch::optim::SGDOptions(0.01).momentum(0.9));
      groups.emplace_back(std::vector<at::Tensor>{p}, std::move(options));
    }
    if (adam)
      torchs = std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(0.01));
    else
      torchs = std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.01));
    for (int step = 0; step < 10; ++step) {
      const auto x = torch::randn({4, 33}, torch::kDouble);
      ours->zero_grad();
      theirs->zero_grad();
      (ours(x).pow(2).sum() * 12).backward();
      theirs(x).pow(2).sum().backward();
      mine->step(0.01, /*divisor=*/12);
      torchs->step();
    }
    EXPECT_TRUE(torch::allclose(ours->weight, theirs->weight, 1e-12, 1e-14)) << adam;
    EXPECT_TRUE(torch::allclose(ours->bias, theirs->bias, 1e-12, 1e-14)) << adam;
  }
}

TEST(Optimizers, LeaveAloneWhatHasNoGradient) {
  torch::nn::Linear model(3, 2);
  auto adam = optim::make_adamw(slots_of(*model), {});
  const auto bias = model->bias.clone();
  model->weight.mutable_grad() = torch::ones({2, 3});
  adam->step(0.1);
  EXPECT_TRUE(model->bias.equal(bias));
  EXPECT_EQ(adam->steps(), (std::vector<int64_t>{1, 0}));
}

TEST(Offload, GivesTheSameBitsFromTheHostsMemory) {
  for (const auto device : {torch::Device("cpu"), torch::Device("cuda")}) {
    if (device.is_cuda() && !torch::cuda::is_available()) continue;
    // On a GPU its own kernels round in another order; what is compared is the host's.
    const auto train = [&](optim::StateIn where, const torch::Device& on) {
      torch::manual_seed(3);
      torch::nn::Linear model(300, 70);
      model->to(on);
      auto adam = optim::make_adamw(slots_of(*model), {}, where);
      for (int step = 1; step <= 4; ++step) {
        for (const auto& one : model->parameters()) {
          torch::manual_seed(step);
          one.mutable_grad() = torch::randn(one.sizes()).to(on);
        }
        if (step == 3) model->bias.mutable_grad() = at::Tensor();
        adam->step(0.1, 2.0);
      }
      EXPECT_EQ(adam->states().size(), 4u);
      for (const auto& state : adam->states())
        EXPECT_EQ(state.tensor.device().is_cpu(), where == optim::StateIn::Host || on.is_cpu());
      return model->weight.detach().cpu();
    };
    EXPECT_TRUE(train(optim::StateIn::Host, device)
                    .equal(train(optim::StateIn::Device, torch::Device("cpu"))));
  }
}

TEST(Clipping, IsTorchs) {
  torch::nn::Linear model(9, 4);
  const auto input = torch::randn({5, 9});
  const Mesh mesh = mesh_of_one();
  parallel::DataParallel alone(*model, mesh);
  alone.backward({model(input).pow(2).sum(), 1});
  const double norm = alone.finish({.norm = true}).norm;
  auto expected = model->weight.grad() / optim::clip_divisor(norm, 0.5);
  const double torchs = torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5);
  EXPECT_NEAR(norm, torchs, 1e-5 * torchs);
  EXPECT_TRUE(torch::allclose(model->weight.grad(), expected, 1e-5));
  EXPECT_EQ(optim::clip_divisor(3, 0), 1);
}

TEST(Schedule, WarmsUpAndEndsWhereItShould) {
  using Schedule = optim::LearningRateSchedule;
  const Schedule cosine{
      .kind = Schedule::Kind::Cosine, .peak = 2, .warmup = 4, .steps = 104, .final = 0.1};
  EXPECT_DOUBLE_EQ(cosine.at(1), 0.5);
  EXPECT_DOUBLE_EQ(cosine.at(4), 2);
  EXPECT_DOUBLE_EQ(cosine.at(54), 0.2 + 0.9);
  EXPECT_DOUBLE_EQ(cosine.at(104), 0.2);
  EXPECT_DOUBLE_EQ(cosine.at(1000), 0.2);
  const Schedule line{
      .kind = Schedule::Kind::Linear, .peak = 1, .warmup = 0, .steps = 10, .final = 0};
  EXPECT_DOUBLE_EQ(line.at(5), 0.5);
  const Schedule flat{.kind = Schedule::Kind::Constant, .peak = 3, .warmup = 0, .steps = 10};
  EXPECT_DOUBLE_EQ(flat.at(9), 3);
}

TEST(Optimizers, TakeParametersInAnyDenseOrderOfMemory) {
  for (const bool adam : {true, false}) {
    torch::manual_seed(3);
    const auto values = torch::randn({5, 6, 3, 3});
    const auto plain = values.clone().requires_grad_();
    const auto last = values.contiguous(at::MemoryFormat::ChannelsLast).clone().requires_grad_();
    ASSERT_FALSE(last.is_contiguous());
    const auto make = [&](const at::Tensor& parameter) {
      const std::vector<optim::Slot> slots = {{"w", parameter, true}};
      return adam ? optim::make_adamw(slots, {}) : optim::make_sgd(slots, {});
    };
    const auto one = make(plain), two = make(last);
    for (int step = 0; step < 4; ++step) {
      const auto gradient = torch::randn({5, 6, 3, 3});
      plain.mutable_grad() = gradient.clone();
      // As autograd gives it, and as a bucket does.
      last.mutable_grad() =
          step % 2 == 0 ? gradient.contiguous(at::MemoryFormat::ChannelsLast) : gradient.clone();
      one->step(0.01, 3);
      two->step(0.01, 3);
      EXPECT_TRUE(torch::allclose(last, plain, 1e-6, 1e-7)) << adam << " step " << step;
    }
    EXPECT_EQ(two->states()[0].tensor.strides(), last.strides());
  }
}

}  // namespace
}  // namespace trireme::test
