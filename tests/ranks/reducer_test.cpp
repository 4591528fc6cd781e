// The one door for gradients: everything that is summed goes through it, whatever the mesh; a
// reducer of one's own can change how; and what it keeps is saved with the checkpoint.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <sstream>

#include "support/cuts.h"
#include "support/scratch.h"
#include "trireme/core/trace.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/train/checkpoints.h"

namespace trireme::test::reducer {
namespace {

using comm::Communicator;
using parallel::GradientBlock;
using parallel::Reducer;

/// Counts what passes.
class CountingReducer final : public Reducer {
 public:
  explicit CountingReducer(const Mesh& mesh) : CountingReducer(parallel::make_reducer(mesh)) {}
  parallel::StartedSum start(GradientBlock block, const RankSet& over) override {
    const auto tensors = block.data.defined() ? 1 : static_cast<int>(block.whole.size());
    if (group(over, block.lane).size() > 1) sums += tensors;  // a trace has each of them
    return inner_->start(std::move(block), over);
  }
  int sums = 0;

 private:
  explicit CountingReducer(const std::shared_ptr<Reducer>& inner) : Reducer(inner), inner_(inner) {}
  std::shared_ptr<Reducer> inner_;
};

/// Rounds gradients to steps of 2^-6 before they travel, and adds what was lost to the next ones:
/// error feedback in its plainest form.
class RoundingReducer final : public Reducer {
 public:
  RoundingReducer(const Mesh& mesh, std::size_t blocks)
      : RoundingReducer(parallel::make_reducer(mesh), blocks) {}
  RoundingReducer(const std::shared_ptr<Reducer>& inner, std::size_t blocks)
      : Reducer(inner), inner_(inner), lost_(blocks) {
    for (at::Tensor& one : lost_) one = torch::zeros({kMost}, torch::kDouble);
  }
  parallel::StartedSum start(GradientBlock block, const RankSet& over) override {
    at::Tensor lost = lost_[next_++ % lost_.size()].narrow(0, 0, block.data.numel());
    block.data.add_(lost);
    const at::Tensor rounded = torch::round(block.data * 64) / 64;
    lost.copy_(block.data - rounded);
    block.data.copy_(rounded);
    return inner_->start(std::move(block), over);
  }
  std::vector<parallel::ReducerState> states() override {
    std::vector<parallel::ReducerState> all;
    for (std::size_t i = 0; i < lost_.size(); ++i)
      all.push_back({"lost", "block." + std::to_string(i), lost_[i]});
    return all;
  }

 private:
  static constexpr int64_t kMost = 4096;
  std::shared_ptr<Reducer> inner_;
  std::vector<at::Tensor> lost_;
  std::size_t next_ = 0;
};

/// The operations in the text of a trace whose names have all of these words.
int count_ops(const std::string& trace, const std::vector<std::string>& words) {
  std::istringstream lines(trace);
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    bool has = line.find("\"ph\":\"b\"") != line.npos;
    for (const std::string& word : words) has = has && line.find(word) != line.npos;
    count += has ? 1 : 0;
  }
  return count;
}

struct Mesh8 {
  Degrees degrees;
  config::ShardedState what = config::ShardedState::Parameters;
};

TEST(Reducer, CarriesEveryGradientAndOneSmallReductionTheRest) {
  using enum config::ShardedState;
  for (const auto& [degrees, what] : std::vector<Mesh8>{{{.replica = 2}},
                                                        {{.tensor = 4}},
                                                        {{.replica = 2, .shard = 2}, Optimizer},
                                                        {{.replica = 2, .shard = 2}, Gradients},
                                                        {{.replica = 2, .shard = 2}, Parameters},
                                                        {{.pipe = 2, .tensor = 4}},
                                                        {{.pipe = 4}},  // tied on 0 and 3 only
                                                        {{.pipe = 2, .replica = 2, .shard = 2}}}) {
    SCOPED_TRACE(to_string(degrees));
    const Case c{.what = what, .heads = 4, .kv_heads = 2, .batch = 8, .micro = 8};
    config::Config config = config_of(c);
    config.precision.compute = config.precision.reduce = config::Dtype::Float32;
    run_world(kThreads, degrees.world(), [&](const Communicator& world) {
      const Mesh mesh(world, degrees);
      const auto model = [&](const Mesh& on) { return models::make_model(config, on); };
      const auto reducer = std::make_shared<CountingReducer>(mesh);
      train::Trainer trainer(config, mesh, train::build(model, mesh), 3, {.reducer = reducer});
      const Labelled data(c);
      const data::Order order(3, data.size(), c.batch);
      const auto trace = std::make_shared<core::Trace>(world.rank());
      for (int64_t step = 1; step <= 2; ++step) {
        const auto batch =
            data::Loader::read(data, order, mesh.samples().rank(), mesh.samples().size(), step - 1);
        if (step == 2) world.set_trace(trace);
        reducer->sums = 0;
        trainer.step(step, batch);
      }
      world.set_trace(nullptr);
      const std::string ops = trace->take();
      // The layers of a tensor axis have sums of their own, over 'tensor'.
      const int small = count_ops(ops, {"all_reduce", "float64"}) -
                        count_ops(ops, {"all_reduce", "float64", "'tensor'"});
      EXPECT_EQ(small, 1);
      const int large = count_ops(ops, {"all_reduce", "float32"}) +
                        count_ops(ops, {"reduce_scatter", "float32"}) -
                        count_ops(ops, {"all_reduce", "float32", "'tensor'"}) -
                        count_ops(ops, {"reduce_scatter", "float32", "'tensor'"});
      const bool has_none = degrees.pipe == 4 && mesh.coord().pipe % 3 != 0;  // no tied weight
      EXPECT_EQ(reducer->sums == 0, has_none);
      EXPECT_EQ(large, reducer->sums);
    });
  }
}

/// The losses of steps (from, 8], with what was saved after the fourth.
std::vector<double> train_rounded(const Communicator& world, const std::string& folder,
                                  int64_t until) {
  constexpr std::size_t kBlocks = 2;
  torch::nn::Sequential net(torch::nn::Linear(3, 40), torch::nn::Tanh(), torch::nn::Linear(40, 2));
  net->to(torch::kDouble);
  {
    const at::NoGradGuard guard;  // ranks are threads: they would share a random generator
    for (at::Tensor& one : net->parameters())
      one.copy_(torch::sin(torch::arange(one.numel(), torch::kDouble)).view(one.sizes()) / 4);
  }
  const Mesh mesh(world, {.replica = world.size()});
  parallel::DataParallel replicas(*net, mesh,
                                  {.buckets = {.first_bytes = 700, .bytes = 1 << 20},
                                   .reducer = std::make_shared<RoundingReducer>(mesh, kBlocks)});
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  train::Checkpoints checkpoints(folder, replicas, optimizer);
  std::vector<double> losses;
  for (int64_t step = checkpoints.resume() + 1; step <= until; ++step) {
    const auto x = torch::sin(torch::arange(12, torch::kDouble) + world.rank() + 0.3 * step);
    const auto y = net->forward(x.view({4, 3}));
    replicas.backward({(y - 1).pow(2).sum(), 4});
    const auto totals = replicas.finish();
    optimizer.step();
    losses.push_back(totals.loss / totals.weight);
    if (step == 4) checkpoints.save(step);
  }
  checkpoints.wait();
  return losses;
}

TEST(Reducer, OfOnesOwnIsSavedAndGoesOnToTheBit) {
  const Scratch scratch;
  std::vector<double> whole, second;
  run_world(kThreads, 2, [&](const Communicator& world) {
    const auto losses = train_rounded(world, scratch / "whole", 8);
    if (world.rank() == 0) whole = losses;
  });
  run_world(kThreads, 2, [&](const Communicator& world) {
    train_rounded(world, scratch / "halves", 4);
    const auto losses = train_rounded(world, scratch / "halves", 8);
    if (world.rank() == 0) second = losses;
  });
  ASSERT_EQ(second.size(), 4u);
  EXPECT_EQ(std::vector<double>(whole.begin() + 4, whole.end()), second);
}

TEST(Reducer, OfAnotherMeshBeginsWithoutWhatWasKept) {
  const Scratch scratch;
  run_world(kThreads, 2,
            [&](const Communicator& world) { train_rounded(world, scratch / "run", 4); });
  run_world(kThreads, 3, [&](const Communicator& world) {
    EXPECT_EQ(train_rounded(world, scratch / "run", 6).size(), 2u);
  });
}

}  // namespace
}  // namespace trireme::test::reducer
