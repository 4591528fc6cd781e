// Shards a model over the ranks: each keeps about 1/n of the parameters, gradients and optimizer
// state, and the losses are those of one rank. A checkpoint can be resumed on any number of ranks:
// save on four, continue on two.
//
//   trireme run -n 4 build/bin/11_sharded runs/sharded 30
//   trireme run -n 2 build/bin/11_sharded runs/sharded 60
#include <torch/torch.h>

#include <iomanip>
#include <iostream>

#include "trireme/trireme.h"

using namespace trireme;
using nn::Flow;

constexpr int64_t kWidth = 48, kClasses = 16;

/// x + down(gelu(up(norm(x)))). Its weights are gathered before it computes and released after.
class Block : public nn::LayerImpl {
 public:
  Block()
      : norm(register_module("norm", nn::LayerNorm(kWidth))),
        up(register_module("up", nn::Linear(kWidth, 4 * kWidth))),
        down(register_module("down", nn::Linear(4 * kWidth, kWidth))) {}

 protected:
  Flow compute(const Flow& in) override {
    const Flow inner = up->forward(norm->forward(in));
    return in.with(in.x() + down->forward(inner.with(torch::gelu(inner.x()))).x());
  }

 private:
  nn::LayerNorm norm;
  nn::Linear up, down;
};

class Net : public nn::LayerImpl {
 public:
  Net() {
    for (int i = 0; i < 4; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
  }
  nn::Loss loss(const torch::Tensor& x, const torch::Tensor& targets) {
    return head->loss(forward(Flow(x)), targets);
  }

 protected:
  Flow compute(const Flow& in) override {
    Flow flow = enter->forward(in);
    for (const auto& block : blocks) flow = block->forward(flow);
    return flow;
  }

 private:
  nn::Linear enter = register_module("enter", nn::Linear(8, kWidth));
  std::vector<std::shared_ptr<Block>> blocks;
  nn::Head head = register_module("head", nn::Head(kWidth, kClasses, nn::HeadImpl::Options{}));
};

/// Points, and the number of the orthant that each lies in.
class Orthants : public data::Dataset {
 public:
  int64_t size() const override { return 4096; }
  data::Sample get(int64_t index) const override {
    const auto x = torch::sin(torch::arange(1, 9) * (0.37 * static_cast<double>(index + 1)));
    int64_t orthant = 0;
    for (int i = 0; i < 4; ++i) orthant = 2 * orthant + (x[i].item<float>() > 0 ? 1 : 0);
    return {x, torch::tensor(orthant)};
  }
};

int main(int argc, char** argv) {
  return guard([&] {
    const auto world = init();
    const Mesh mesh(world, {.shard = world.size()});
    std::shared_ptr<Net> model;
    {
      const nn::Deferred deferred;  // no rank ever holds the whole model
      model = std::make_shared<Net>();
    }
    nn::initialize(*model, /*seed=*/7);
    parallel::FullySharded shards(*model, mesh);

    std::vector<optim::Slot>
        slots;  // of this rank; decay depends on the shape of the whole parameter
    int64_t mine = 0;
    for (const parallel::ParameterShard& one : shards.shards()) {
      slots.push_back({one.name, one.master,
                       optim::is_decayed(shards.parameters()[one.parameter].layout.whole())});
      mine += one.master.numel();
    }
    const auto optimizer = optim::make_adamw(std::move(slots), {.weight_decay = 0.01});
    std::cout << "rank " << world.rank() << " of " << world.size() << " keeps " << mine
              << " parameters" << std::endl;

    train::Checkpoints checkpoints(argc > 1 ? argv[1] : "runs/sharded", shards, *optimizer);
    int64_t step = checkpoints.resume();
    if (world.rank() == 0 && step > 0) std::cout << "continues from step " << step << std::endl;
    const int64_t steps = argc > 2 ? std::stoll(argv[2]) : 60;
    const auto points = std::make_shared<Orthants>();
    const data::Order order(/*seed=*/3, points->size(), /*global_batch=*/64);
    data::Loader loader(points, order, world.rank(), world.size(), step);
    while (step < steps) {
      const data::Batch batch = loader.next();
      const nn::Loss loss = model->loss(batch.inputs, batch.targets);
      shards.backward(loss);
      const auto totals = shards.finish({.norm = true});
      optimizer->step(/*learning_rate=*/3e-3, optim::clip_divisor(totals.norm, 1.0));
      shards.updated();
      ++step;
      if (world.rank() == 0)
        std::cout << "step " << step << "  loss " << std::setprecision(9)
                  << totals.loss / totals.weight << std::endl;
      if (step % 10 == 0) checkpoints.save(step);
    }
    checkpoints.wait();
  });
}
