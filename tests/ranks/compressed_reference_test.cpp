// PowerSGD and 1-bit SGD train as in PyTorch: tests/e2e/compress_reference.py.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <fstream>
#include <mutex>
#include <sstream>

#include "support/backends.h"
#include "support/scratch.h"
#include "support/training.h"
#include "trireme/core/json.h"
#include "trireme/parallel/data_parallel.h"

namespace trireme::test::compressed {
namespace {

constexpr int kReferenceSteps = 20;
constexpr int64_t kInputs = 20, kWideReference = 30, kOutputs = 10, kReferenceRows = 6;
constexpr double kSameAsReference = 1e-10;

at::Tensor reference_wave(at::IntArrayRef shape, double by, double begin) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return torch::sin(torch::arange(count, torch::kDouble) * by + begin).view(shape);
}

void set_weights(torch::nn::Module& model) {
  const at::NoGradGuard guard;
  model.to(torch::kDouble);
  double number = 0;
  for (at::Tensor& one : model.parameters())
    one.copy_(reference_wave(one.sizes(), 1.1, number++) / 4);
}

/// The mean losses of 20 steps on two ranks. `begin` sees the replicas before the first.
std::vector<double> train_reference(
    const std::function<torch::nn::Sequential()>& make, bool tanh_last,
    const parallel::CompressOptions& options,
    const std::function<void(parallel::DataParallel&)>& begin = {}) {
  std::vector<double> losses;
  run_world(kThreads, 2, [&](const comm::Communicator& world) {
    at::set_num_threads(1);
    auto model = make();
    set_weights(*model);
    parallel::DataParallel replicas(*model, world, {.compress = options});
    if (begin && world.rank() == 0) begin(replicas);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    for (int step = 1; step <= kReferenceSteps; ++step) {
      const auto x = reference_wave({kReferenceRows, kInputs}, 0.37, world.rank() + 0.3 * step);
      const auto y = torch::tanh(x.narrow(1, 0, kOutputs) * 1.5);
      const auto out = model->forward(x);
      const auto error = (tanh_last ? torch::tanh(out) : out) - y;
      replicas.backward({error.pow(2).sum(), torch::tensor(double{kReferenceRows})});
      const auto totals = replicas.finish();
      optimizer.step();
      if (world.rank() == 0) losses.push_back(totals.loss / totals.weight);
    }
    replicas.check_same();
  });
  return losses;
}

void expect_as_in_python(const std::vector<double>& ours, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(),
                   {python_with_torch(), TRIREME_SOURCE_DIR "/tests/e2e/compress_reference.py"});
  const auto said = run_patiently(std::move(arguments));
  ASSERT_EQ(said.code, 0) << said.err;
  std::istringstream lines(said.out);
  std::vector<double> theirs;
  for (double loss = 0; lines >> loss;) theirs.push_back(loss);
  ASSERT_EQ(ours.size(), theirs.size());
  double worst = 0;
  for (std::size_t i = 0; i < ours.size(); ++i)
    worst = std::max(worst, std::abs(ours[i] - theirs[i]) / theirs[i]);
  EXPECT_LE(worst, kSameAsReference);
  EXPECT_LT(ours.back(), 0.7 * ours.front()) << "both have learned something";
  testing::Test::RecordProperty("worst", std::to_string(worst));
  std::printf("the worst relative difference of 20 losses: %.2e\n", worst);
}

TEST(PowerSgd, TrainsAsTorchsOwnHook) {
  const Scratch scratch;
  const std::string factors = scratch / "factors.json";
  const auto ours = train_reference(
      [] {
        return torch::nn::Sequential(torch::nn::Linear(kInputs, kWideReference), torch::nn::Tanh(),
                                     torch::nn::Linear(kWideReference, kOutputs));
      },
      false, {.kind = parallel::Compression::PowerSgd, .rank = 2, .warmup = 2},
      [&](parallel::DataParallel& replicas) {
        core::Json json;
        for (const auto& one : replicas.reducer().states()) {
          if (one.kind != "factor") continue;
          std::vector<double> all(one.tensor.data_ptr<double>(),
                                  one.tensor.data_ptr<double>() + one.tensor.numel());
          json[std::to_string(one.tensor.size(0))] = all;
        }
        EXPECT_EQ(json.size(), 2u) << "the two weights; their biases travel as they are";
        std::ofstream(factors) << json.dump();
      });
  expect_as_in_python(ours, {"powersgd", factors, std::to_string(kReferenceSteps), "2"});
}

TEST(OneBit, TrainsAsThePaperSays) {
  const auto ours = train_reference(
      [] {
        return torch::nn::Sequential(
            torch::nn::Linear(torch::nn::LinearOptions(kInputs, kOutputs).bias(false)));
      },
      true, {.kind = parallel::Compression::OneBit});
  expect_as_in_python(ours, {"onebit", std::to_string(kReferenceSteps)});
}

}  // namespace
}  // namespace trireme::test::compressed
