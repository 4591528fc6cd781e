// Runs your own model as a pipeline: eight micro-batches by the 1f1b schedule, and a tensor that
// skips stages. The gradients equal those of one rank on the whole batch; every rank checks its
// own.
//
//   trireme run -n 3 build/bin/09_pipeline_your_model
#include <torch/torch.h>

#include <iostream>

#include "trireme/trireme.h"

using namespace trireme;
using nn::Flow;

constexpr int64_t kWidth = 24, kClasses = 10;

/// x + down(gelu(up(x))).
class Block : public nn::LayerImpl {
 public:
  Block()
      : up(register_module("up", nn::Linear(kWidth, 4 * kWidth))),
        down(register_module("down", nn::Linear(4 * kWidth, kWidth))) {}

 protected:
  Flow compute(const Flow& in) override {
    return in.with(in.x() + down->forward(Flow(torch::gelu(up->forward(in.x())))).x());
  }

 private:
  nn::Linear up, down;
};

/// The output of the first layer is used again before the head, which may be on another rank. So it
/// travels in the Flow, as a second tensor.
class Net : public nn::ModelImpl {
 public:
  Net() {
    enter = register_module("enter", nn::Linear(8, kWidth));
    for (int i = 0; i < 6; ++i)
      blocks_.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
    norm = register_module("norm", nn::LayerNorm(kWidth));
    head = register_module("head", nn::Head(kWidth, kClasses, nn::HeadImpl::Options{}));
  }

  nn::Chain chain() override {
    nn::Chain chain;
    chain.links.push_back({.name = "enter", .layers = {enter.ptr()}, .run = [this](const Flow& in) {
                             const auto x = enter->forward(in.x());
                             return Flow({x, x}, in.where);  // the second skips the blocks
                           }});
    for (const auto& block : blocks_)
      chain.links.push_back(
          {.name = block->full_name(), .layers = {block}, .run = [block](const Flow& in) {
             return Flow({block->forward(in.x()), in.tensors[1]}, in.where);
           }});
    chain.head = {.name = "head", .layers = {norm.ptr(), head.ptr()}};
    chain.loss = [this](const Flow& in, const torch::Tensor& targets) {
      return head->loss(norm->forward(in.with(in.x() + in.tensors[1])), targets);
    };
    return chain;
  }

 private:
  nn::Linear enter{nullptr};
  std::vector<std::shared_ptr<Block>> blocks_;
  nn::LayerNorm norm{nullptr};
  nn::Head head{nullptr};
};

int main() {
  return guard([] {
    const auto world = init();
    const Mesh mesh(world, {.pipe = world.size()});
    const auto model = std::make_shared<Net>(), alone = std::make_shared<Net>();
    for (const auto& one : {model, alone}) nn::initialize(*one, /*seed=*/7);

    const int micros = 8;
    parallel::Pipeline pipe(*model, mesh,
                            pipeline::make("1f1b", {.ranks = world.size(), .micros = micros}));
    torch::manual_seed(3);  // the same batch on every rank; a stage reads only what it needs
    const auto x = torch::randn({30, 8}), y = torch::randint(kClasses, {30});
    std::vector<nn::MicroBatch> parts;  // of four rows each; the last has two
    for (int i = 0; i < micros; ++i)
      parts.push_back({x.slice(0, 4 * i, 4 * i + 4), y.slice(0, 4 * i, 4 * i + 4)});
    pipe.run(parts);
    const auto totals = pipe.finish();

    const nn::Loss loss = alone->loss(x, y);  // the same on one rank
    (loss.sum / loss.weight).backward();
    const auto expected = alone->named_parameters();
    double worst = std::abs(totals.loss / totals.weight - (loss.sum / loss.weight).item<double>());
    for (const parallel::ParameterShard& one : pipe.shards())
      worst =
          std::max(worst, (one.gradient() - expected[one.name].grad()).abs().max().item<double>());
    std::cout << "rank " << world.rank() << ": " << pipe.shards().size() << " parameters, at most "
              << pipe.peak_in_flight() << " micro-batches in flight; "
              << (worst < 1e-5 ? "as" : "NOT as") << " one rank alone" << std::endl;
    TORCH_CHECK(worst < 1e-5, "differs by ", worst);
  });
}
