// A training loop of one's own that is left and taken up again by train::Checkpoints: the same bits
// on the same mesh, the same losses on another, with every way of attaching and every optimizer.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <filesystem>

#include "support/backends.h"
#include "support/scratch.h"
#include "trireme/trireme.h"

namespace trireme::test::own_loop {
namespace {

using comm::Communicator;
using nn::Flow;
using ::testing::HasSubstr;

constexpr int64_t kLoopWidth = 12, kClasses = 5, kRows = 11, kHalf = 4, kAll = 8;
constexpr double kSameLoss = 1e-12;  // eight losses in float64

class Net : public nn::ModelImpl {
 public:
  Net() {
    for (int i = 0; i < 3; ++i)
      layers.push_back(
          register_module("layer" + std::to_string(i), nn::Linear(kLoopWidth, kLoopWidth)));
  }
  nn::Chain chain() override {
    nn::Chain chain;
    for (const auto& layer : layers)
      chain.links.push_back(
          {.name = layer->full_name(), .layers = {layer.ptr()}, .run = [layer](const Flow& in) {
             return in.with(torch::tanh(nn::Linear(layer)->forward(in).x()));
           }});
    chain.head = {.name = "head", .layers = {head.ptr()}};
    chain.loss = [this](const Flow& in, const at::Tensor& y) { return head->loss(in, y); };
    return chain;
  }

 private:
  std::vector<nn::Linear> layers;
  nn::Head head = register_module("head", nn::Head(kLoopWidth, kClasses, nn::HeadImpl::Options{}));
};

std::unique_ptr<torch::optim::Optimizer> torch_optimizer(const std::string& name,
                                                         const std::vector<at::Tensor>& of) {
  namespace to = torch::optim;
  if (name == "AdamW") return std::make_unique<to::AdamW>(of, to::AdamWOptions(1e-2));
  if (name == "Adam") return std::make_unique<to::Adam>(of, to::AdamOptions(1e-2).amsgrad(true));
  if (name == "RMSprop") return std::make_unique<to::RMSprop>(of, to::RMSpropOptions(1e-2));
  const double momentum = name == "SGD" ? 0.9 : 0;
  return std::make_unique<to::SGD>(of,
                                   to::SGDOptions(0.1).momentum(momentum).dampening(momentum / 3));
}

/// One life of the loop.
class Loop {
 public:
  Loop(const Communicator& world, Degrees degrees, const std::string& optimizer,
       const std::string& folder)
      : mesh_(world, degrees), model_(std::make_shared<Net>()) {
    model_->to(torch::kDouble);
    nn::initialize(*model_, 5);
    if (degrees.pipe > 1)
      attached_ = std::make_unique<parallel::Pipeline>(
          *model_, mesh_, pipeline::make("1f1b", {.ranks = degrees.pipe, .micros = 1}));
    else if (degrees.shard > 1)
      attached_ = std::make_unique<parallel::FullySharded>(*model_, mesh_);
    else
      attached_ = std::make_unique<parallel::DataParallel>(*model_, mesh_);
    std::vector<at::Tensor> tensors;
    std::vector<optim::Slot> slots;
    for (const parallel::ParameterShard& one : attached_->shards()) {
      tensors.push_back(one.master);
      slots.push_back({one.name, one.master});
    }
    if (optimizer == "ours") {
      ours_ = optim::make_adamw(std::move(slots), {});
      checkpoints_.emplace(folder, *attached_, *ours_);
    } else {
      torch_ = torch_optimizer(optimizer, tensors);
      checkpoints_.emplace(folder, *attached_, *torch_);
    }
  }

  train::Checkpoints& checkpoints() { return *checkpoints_; }

  /// The losses of steps (from, to].
  std::vector<double> run(int64_t from, int64_t to) {
    std::vector<double> losses;
    for (int64_t step = from + 1; step <= to; ++step) losses.push_back(run_step(step));
    return losses;
  }

 private:
  double run_step(int64_t step) {
    const Range mine = even_range(kRows, mesh_.samples().size(), mesh_.samples().rank());
    const auto all = torch::sin(torch::arange(kRows * kLoopWidth, torch::kDouble) + 0.1 * step);
    const auto x = all.view({kRows, kLoopWidth}).narrow(0, mine.begin, mine.count);
    const auto y = (torch::arange(kRows) % kClasses).narrow(0, mine.begin, mine.count);
    attached_->run({{x, y}});
    const auto totals = attached_->finish();
    if (ours_)
      ours_->step(1e-2);
    else
      torch_->step();
    attached_->updated();
    return totals.loss / totals.weight;
  }

  Mesh mesh_;
  std::shared_ptr<Net> model_;
  std::unique_ptr<parallel::Attached> attached_;
  std::unique_ptr<torch::optim::Optimizer> torch_;
  std::unique_ptr<optim::Optimizer> ours_;
  std::optional<train::Checkpoints> checkpoints_;
};

struct LoopCase {
  Degrees degrees;
  std::string optimizer;
};

/// The losses of all steps, in one life or in two.
std::vector<double> losses_of(const std::string& folder, const LoopCase& first,
                              const LoopCase& second, bool is_left) {
  std::vector<double> losses;
  run_world(kThreads, first.degrees.world(), [&](const Communicator& world) {
    at::set_num_threads(1);
    Loop loop(world, first.degrees, first.optimizer, folder);
    EXPECT_EQ(loop.checkpoints().resume(), 0);
    auto mine = loop.run(0, is_left ? kHalf : kAll);
    loop.checkpoints().save(is_left ? kHalf : kAll, {{"seen", 17}});
    if (world.rank() == 0) losses = mine;
  });
  if (!is_left) return losses;
  run_world(kThreads, second.degrees.world(), [&](const Communicator& world) {
    at::set_num_threads(1);
    Loop loop(world, second.degrees, second.optimizer, folder);
    EXPECT_EQ(loop.checkpoints().resume(), kHalf);
    EXPECT_EQ(loop.checkpoints().extra(), (core::Json{{"seen", 17}}));
    const auto mine = loop.run(kHalf, kAll);
    if (world.rank() == 0) losses.insert(losses.end(), mine.begin(), mine.end());
  });
  return losses;
}

const LoopCase kCases[] = {{{.replica = 2}, "AdamW"}, {{.replica = 3}, "Adam"},
                           {{.replica = 2}, "SGD"},   {{}, "SGD without momentum"},
                           {{.shard = 3}, "ours"},    {{.replica = 2, .shard = 2}, "AdamW"},
                           {{.pipe = 2}, "SGD"},      {{.pipe = 2, .replica = 2}, "ours"}};

TEST(ALoopOfOnesOwn, ThatIsLeftGoesOnToTheSameBits) {
  for (const LoopCase& one : kCases) {
    SCOPED_TRACE(to_string(one.degrees) + ", " + one.optimizer);
    const Scratch scratch;
    const auto whole = losses_of(scratch / "whole", one, one, false);
    EXPECT_EQ(losses_of(scratch / "left", one, one, true), whole);
    EXPECT_LT(whole.back(), 0.999 * whole.front()) << "it learns";
  }
}

TEST(ALoopOfOnesOwn, GoesOnOnAnotherMeshAndWithTheSameOptimizerOfOurs) {
  const Scratch scratch;
  const LoopCase cases[] = {
      {{.replica = 3}, "AdamW"}, {{.shard = 2}, "AdamW"}, {{.pipe = 2}, "AdamW"}, {{}, "AdamW"}};
  const auto whole = losses_of(scratch / "whole", cases[0], cases[0], false);
  for (std::size_t from = 0; from < std::size(cases); ++from) {
    const std::size_t to = (from + 1) % std::size(cases);
    const auto losses = losses_of(scratch / std::to_string(from), cases[from], cases[to], true);
    ASSERT_EQ(losses.size(), whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(losses[i], whole[i], kSameLoss) << i;
  }
}

TEST(ALoopOfOnesOwn, IsRefusedWhereItCannotGoOn) {
  const Scratch scratch;
  losses_of(scratch / "adam", {{}, "AdamW"}, {}, false);
  run_world(kThreads, 1, [&](const Communicator& world) {
    const auto error_of = [&](const std::function<void()>& body) -> std::string {
      try {
        body();
      } catch (const c10::Error& error) {
        return error.what_without_backtrace();
      } catch (const std::exception& error) {
        return error.what();
      }
      return "nothing";
    };
    EXPECT_THAT(error_of([&] { Loop(world, {}, "SGD", scratch / "adam").checkpoints().resume(); }),
                HasSubstr("made with the optimizer adamw, this is sgd"));
    EXPECT_THAT(error_of([&] {
                  Loop(world, {}, "SGD without momentum", scratch / "adam").checkpoints().resume();
                }),
                HasSubstr("made with the optimizer adamw, this is sgd"));
    EXPECT_THAT(error_of([&] { Loop(world, {}, "RMSprop", scratch / "other"); }),
                HasSubstr("knows torch's AdamW, Adam and SGD"));
    EXPECT_THAT(error_of([&] { Loop(world, {}, "SGD", "/proc/nothing"); }),
                HasSubstr("cannot create /proc/nothing"));
    Loop first(world, {}, "AdamW", scratch / "adam");
    EXPECT_THAT(error_of([&] { Loop(world, {}, "AdamW", scratch / "adam"); }),
                HasSubstr("in use by another run"));
  });
}

}  // namespace
}  // namespace trireme::test::own_loop
