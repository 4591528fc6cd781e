// Layers and losses against torch, and the rule that chance depends on logical coordinates only.
#include "trireme/nn/layers.h"

#include <gmock/gmock.h>

#include <ATen/record_function.h>
#include <torch/torch.h>

#include <cfloat>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "support/tiny.h"
#include "trireme/core/error.h"
#include "trireme/nn/dropout.h"
#include "trireme/nn/gelu.h"
#include "trireme/nn/loss.h"
#include "trireme/nn/matmul.h"
#include "trireme/nn/parallel_loop.h"
#include "trireme/nn/parameters.h"

namespace trireme::test {
namespace {

using nn::Flow;

TEST(Dropout, DependsOnStepAndSampleAndNotOnTheCutOfTheBatch) {
  nn::Sequential model(std::vector<std::shared_ptr<nn::LayerImpl>>{
      std::make_shared<nn::DropoutImpl>(0.4), std::make_shared<nn::DropoutImpl>(0.4)});
  nn::initialize(*model, 5);
  const auto x = torch::ones({4, 6, 5});
  const auto whole = model->forward(Flow(x, where({10, 11, 12, 13}))).x();
  const auto part = model->forward(Flow(x.narrow(0, 2, 2), where({12, 13}))).x();
  EXPECT_TRUE(part.equal(whole.narrow(0, 2, 2)));
  const auto tail = model->forward(Flow(x.narrow(1, 4, 2), where({10, 11, 12, 13}, 3, 4))).x();
  EXPECT_TRUE(tail.equal(whole.narrow(1, 4, 2))) << "a part of the sequence";
  EXPECT_FALSE(model->forward(Flow(x, where({10, 11, 12, 13}, 4))).x().equal(whole));
  EXPECT_FALSE(whole[0].equal(whole[1]));
}

TEST(Dropout, DropsAsOftenAsAskedAndKeepsTheMean) {
  nn::Dropout layer(0.25);
  nn::initialize(*layer, 1);
  const auto y =
      layer->forward(Flow(torch::ones({8, 100, 100}), where({0, 1, 2, 3, 4, 5, 6, 7}))).x();
  EXPECT_NEAR((y == 0).to(torch::kDouble).mean().item<double>(), 0.25, 0.005);
  EXPECT_NEAR(y.mean().item<double>(), 1, 0.01);
  layer->eval();
  EXPECT_TRUE(layer->forward(torch::ones({3})).equal(torch::ones({3})));
}

TEST(Dropout, WithoutKnowingItsSamplesIsAnError) {
  nn::Dropout layer(0.5);
  nn::initialize(*layer, 1);
  EXPECT_THROW(layer->forward(torch::ones({2, 3})), MisuseError);
  EXPECT_THROW(layer->forward(Flow(torch::ones({2, 3}), where({1}))), MisuseError);
}

TEST(Gelu, IsTorchsInValueAndGradient) {
  const auto x = torch::cat({torch::linspace(-20, 20, 4001), torch::tensor({-1e4f, 1e4f, 0.0f})})
                     .requires_grad_();
  const auto y = nn::gelu_tanh(x);
  y.sum().backward();
  const auto exact = x.detach().to(torch::kDouble).requires_grad_();
  const auto expected = torch::gelu(exact, "tanh");
  expected.sum().backward();
  EXPECT_LE((y - expected).abs().div(1 + expected.abs()).max().item<double>(), 3e-7);
  // Float32 loses digits where the slope's terms cancel, torch's own too: no worse than twice that.
  const auto plain = x.detach().clone().requires_grad_();
  torch::gelu(plain, "tanh").sum().backward();
  const double torchs = (plain.grad() - exact.grad()).abs().max().item<double>();
  EXPECT_LE((x.grad() - exact.grad()).abs().max().item<double>(), 2 * torchs);
  for (const at::Tensor& one :
       {y.detach(), x.grad() * 1e-6})  // such numbers slow every product down
    EXPECT_FALSE(((one != 0) & (one.abs() < FLT_MIN)).any().item<bool>()) << "a subnormal number";
  EXPECT_TRUE(nn::gelu_tanh(torch::tensor({std::nanf("")})).isnan().item<bool>());
  EXPECT_EQ(nn::gelu_tanh(torch::empty({0, 3})).numel(), 0);
}

TEST(Linear, IsTorchsInValueAndGradient) {
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    torch::manual_seed(1);
    const auto options = torch::TensorOptions(dtype).requires_grad(true);
    const auto x = torch::randn({3, 17, 9}, options), w = torch::randn({21, 9}, options),
               b = torch::randn({21}, options);
    const auto weights = torch::randn({3, 17, 21}, dtype);
    (nn::linear(x, w, b) * weights).sum().backward();
    const std::vector<at::Tensor> ours = {x.grad().clone(), w.grad().clone(), b.grad().clone()};
    for (const auto& tensor : {x, w, b}) tensor.mutable_grad().zero_();
    (torch::linear(x, w, b) * weights).sum().backward();
    const std::vector<at::Tensor> theirs = {x.grad(), w.grad(), b.grad()};
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_TRUE(torch::allclose(ours[i], theirs[i], 1e-5, 1e-5)) << i << " " << dtype;
    EXPECT_TRUE(torch::allclose(nn::linear(x, w, {}), torch::linear(x, w), 1e-5, 1e-5));
    EXPECT_TRUE(torch::allclose(nn::product(w, x.flatten(0, 1)), torch::mm(w, x.flatten(0, 1).t()),
                                1e-5, 1e-5));
    EXPECT_EQ(nn::linear(x.narrow(0, 0, 0), w, b).sizes(), (std::vector<int64_t>{0, 17, 21}));
    w.mutable_grad() = at::Tensor();
    (nn::linear(x, w, {}) * weights).sum().backward();
    EXPECT_TRUE(torch::allclose(w.grad(), theirs[1], 1e-5, 1e-5)) << "without a bias";
  }
}

TEST(LinearCrossEntropy, EqualsTheTwoOperationsInValueAndGradient) {
  for (const int64_t rows : {0, 1, 37, 700}) {
    torch::manual_seed(rows);
    const auto x = torch::randn({rows, 5}, torch::kDouble).requires_grad_();
    const auto w = torch::randn({3000, 5}, torch::kDouble).requires_grad_();
    auto targets = torch::randint(0, 3000, {rows}, torch::kLong);
    if (rows > 3) targets.narrow(0, 1, 2).fill_(nn::kIgnored);
    const auto fused = nn::linear_cross_entropy(x, w, targets);
    (fused.sum * 0.5).backward();
    const auto dx = x.grad().clone(), dw = w.grad().clone();
    x.mutable_grad().zero_();
    w.mutable_grad().zero_();
    const auto plain = nn::cross_entropy(torch::matmul(x, w.t()), targets);
    (plain.sum * 0.5).backward();
    EXPECT_NEAR(fused.sum.item<double>(), plain.sum.item<double>(), 1e-10 * (1 + rows));
    EXPECT_EQ(fused.weight.item<double>(), plain.weight.item<double>());
    EXPECT_TRUE(torch::allclose(dx, x.grad(), 1e-11, 1e-13));
    EXPECT_TRUE(torch::allclose(dw, w.grad(), 1e-11, 1e-13));
  }
}

TEST(LinearCrossEntropy, SurvivesChancesThatUnderflow) {
  const auto x = torch::tensor({{200.0f}}), w = torch::tensor({{1.0f}, {0.0f}});
  EXPECT_FLOAT_EQ(nn::linear_cross_entropy(x, w, torch::tensor({1})).sum.item<float>(), 200);
}

TEST(LinearCrossEntropy, NamesATargetThatIsNoClass) {
  const auto x = torch::ones({1, 2}), w = torch::ones({3, 2});
  for (const int64_t bad : {3, -1}) {
    EXPECT_THROW(nn::linear_cross_entropy(x, w, torch::tensor({bad})), Error);
    EXPECT_THROW(nn::cross_entropy(torch::ones({1, 3}), torch::tensor({bad})), Error);
  }
}

/// What is called while `body` runs, by name.
std::map<std::string, int> calls_in(const std::function<void()>& body) {
  static thread_local std::map<std::string, int>* counted = nullptr;
  std::map<std::string, int> calls;
  counted = &calls;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(
      [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        ++(*counted)[function.name()];
        return nullptr;
      }));
  body();
  at::removeCallback(handle);
  return calls;
}

TEST(LinearCrossEntropy, ComputesNoGradientInAnEvaluation) {
  const auto x = torch::randn({64, 5}), w = torch::randn({30, 5}).requires_grad_();
  const auto targets = torch::randint(0, 30, {64}, torch::kLong);
  const auto products = [&] {
    const auto calls = calls_in([&] { nn::linear_cross_entropy(x, w, targets); });
    int count = 0;
    for (const auto& [name, times] : calls)
      if (name == "aten::mm" || name == "aten::addmm" || name == "aten::linear" ||
          name == "mkldnn::_linear_pointwise")
        count += times;
    return count;
  };
  const int training = products();
  const torch::NoGradGuard guard;
  EXPECT_LT(products(), training) << "the weight requires a gradient, but nobody will ask for it";
}

TEST(LinearCrossEntropy, OnAGpuCutsByMemoryAndNeverWaitsForAChunk) {
  using c10::DeviceType;
  EXPECT_EQ(nn::loss_chunks(DeviceType::CPU, 50257, 1, 4).rows, 32);
  EXPECT_EQ(nn::loss_chunks(DeviceType::CPU, 100, 1, 4).rows, 1024);
  EXPECT_TRUE(nn::loss_chunks(DeviceType::CPU, 100, 1, 4).may_look);
  for (const int64_t classes : {50257, 4096}) {
    for (const int ranks : {1, 4}) {
      for (const int64_t item : {2, 4, 8}) {
        const auto chunks = nn::loss_chunks(DeviceType::CUDA, classes, ranks, item);
        const int64_t bytes = chunks.rows * (classes / ranks) * item;
        EXPECT_GT(bytes, 250 << 20);
        EXPECT_LE(bytes, int64_t{1} << 30);
        EXPECT_FALSE(chunks.may_look);
      }
    }
  }
  // Both ways give the same, also where a chance underflows and where labels are masked.
  for (const auto dtype : {torch::kDouble, torch::kFloat}) {
    torch::manual_seed(2);
    auto w = torch::randn({300, 5}, dtype), x = torch::randn({70, 5}, dtype);
    x[3] *= 200;
    auto targets = torch::randint(0, 300, {70}, torch::kLong);
    targets.narrow(0, 10, 4).fill_(nn::kIgnored);
    const nn::ClassShard all{.mine = {0, 300}, .all = 300};
    const auto run = [&](nn::LossChunks chunks) {
      const auto xs = x.clone().requires_grad_(), ws = w.clone().requires_grad_();
      const auto loss = nn::linear_cross_entropy(xs, ws, {}, targets, all, chunks);
      loss.sum.backward();
      return std::vector<at::Tensor>{loss.sum.detach(), loss.weight, xs.grad(), ws.grad()};
    };
    const auto looking = run({.rows = 32, .may_look = true});
    for (const int64_t rows : {7, 70}) {
      const auto blind = run({.rows = rows, .may_look = false});
      for (std::size_t i = 0; i < looking.size(); ++i)
        EXPECT_TRUE(torch::allclose(blind[i], looking[i], dtype == torch::kFloat ? 1e-4 : 1e-12,
                                    dtype == torch::kFloat ? 1e-4 : 1e-12))
            << i << " in chunks of " << rows;
    }
    const auto waits = [&](int64_t rows, bool may_look) {
      const auto calls = calls_in([&] {
        const auto xs = x.clone().requires_grad_();
        nn::linear_cross_entropy(xs, w, {}, targets, all, {.rows = rows, .may_look = may_look});
      });
      const auto found = calls.find("aten::_local_scalar_dense");
      return found == calls.end() ? 0 : found->second;
    };
    EXPECT_EQ(waits(7, false), waits(70, false)) << "not one more for ten times as many chunks";
    EXPECT_GT(waits(7, true), waits(70, true)) << "this is how they are seen";
  }
}

TEST(Linear, KeepsItsInputOnlyForAWeightThatIsTrained) {
  const auto kept_bytes = [](bool trained) {
    const auto w = torch::randn({4, 8}).requires_grad_(trained);
    auto x = torch::randn({1000, 8}).requires_grad_();
    auto hidden = x * 2;
    const auto storage = hidden.storage();
    const auto y = nn::linear(hidden, w, {});
    hidden = at::Tensor();
    const auto holders = storage.use_count() - 1;  // without ours
    y.sum().backward();
    EXPECT_TRUE(x.grad().defined());
    return holders;
  };
  EXPECT_EQ(kept_bytes(false), 0) << "the graph holds an input that nobody will read";
  EXPECT_GT(kept_bytes(true), 0);
}

TEST(ParallelLoop, RunsOnLibtorchsThreads) {
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  std::mutex lock;
  std::set<std::thread::id> threads;
  std::vector<int> visits(1000);
  nn::parallel_loop(0, 1000, 1, [&](int64_t begin, int64_t end) {
    const std::lock_guard guard(lock);
    threads.insert(std::this_thread::get_id());
    for (int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
  });
  at::set_num_threads(before);
  EXPECT_THAT(visits, ::testing::Each(1));
  EXPECT_EQ(threads.size(), 2u) << "without OpenMP at::parallel_for is a plain loop";
}

}  // namespace
}  // namespace trireme::test
