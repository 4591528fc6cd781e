// Cuts your own model over the ranks of the tensor axis by a few patterns. The model itself is
// written once, in Trireme's layers. It never calls a collective and does not know that it is cut.
//
//   trireme run -n 2 build/bin/06_cut_your_model
#include <torch/torch.h>

#include <iostream>

#include "trireme/trireme.h"

using namespace trireme;
using nn::Flow;
using nn::Style;

/// x + down(gelu(up(norm(x)))).
class Mlp : public nn::LayerImpl {
 public:
  Mlp(int64_t width, int64_t wide)
      : norm(register_module("norm", nn::LayerNorm(width))),
        up(register_module("up", nn::Linear(width, wide))),
        down(register_module("down", nn::Linear(wide, width))) {}

 protected:
  Flow compute(const Flow& in) override {
    const Flow inner = up->forward(norm->forward(in));
    return in.with(in.x() + down->forward(inner.with(torch::gelu(inner.x()))).x());
  }

 private:
  nn::LayerNorm norm;
  nn::Linear up, down;
};

/// Every position attends to all others. A rank must get whole heads, so the projections are cut in
/// grains of a head; `out_parts` says which features this rank has.
class Attention : public nn::LayerImpl {
 public:
  Attention(int64_t width, int64_t heads) : head_(width / heads) {
    const Section part{.size = width, .grain = head_};
    qkv = register_module(
        "qkv", nn::Linear(width, 3 * width, nn::LinearOptions{.out_sections = {part, part, part}}));
    proj =
        register_module("proj", nn::Linear(width, width, nn::LinearOptions{.in_sections = {part}}));
  }

 protected:
  Flow compute(const Flow& in) override {
    const Flow all = qkv->forward(in);
    const int64_t rows = all.x().size(0), positions = all.x().size(1);
    const int64_t mine = qkv->out_parts()[0].count;  // features of q on this rank
    const auto q_k_v = all.x().split(mine, /*dim=*/2);
    const auto heads = [&](const torch::Tensor& part) {
      return part.view({rows, positions, mine / head_, head_}).transpose(1, 2);
    };
    const auto y =
        torch::scaled_dot_product_attention(heads(q_k_v[0]), heads(q_k_v[1]), heads(q_k_v[2]));
    return proj->forward(all.with(y.transpose(1, 2).reshape({rows, positions, mine})));
  }

 private:
  int64_t head_;
  nn::Linear qkv{nullptr}, proj{nullptr};
};

nn::Sequential make_model(const Mesh& mesh) {
  nn::Sequential model(std::vector<std::shared_ptr<nn::LayerImpl>>{
      std::make_shared<Attention>(32, 4), std::make_shared<Mlp>(32, 128)});
  // `*` does not match dots. Layers that no pattern names (here the norm) are whole on every rank.
  nn::cut(*model,
          {{"*.qkv", Style::Column},
           {"*.proj", Style::Row},
           {"*.up", Style::Column},
           {"*.down", Style::Row}},
          mesh);
  nn::initialize(*model, /*seed=*/7);  // every rank computes its part of the same weights
  return model;
}

/// Trains for a few steps towards an arbitrary target and returns the losses.
std::vector<double> losses_on(const Mesh& mesh) {
  auto model = make_model(mesh);
  parallel::DataParallel replicas(*model, mesh);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto x = torch::linspace(-1, 1, 4 * 6 * 32).view({4, 6, 32});
  const auto target = torch::sin(3 * x);
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    const auto sum = (model->forward(x) - target).pow(2).sum();
    losses.push_back(sum.item<double>() / static_cast<double>(x.numel()));
    replicas.backward({sum, x.numel()});
    replicas.finish();
    optimizer.step();
  }
  return losses;
}

int main() {
  return guard([] {
    const auto world = init();
    const Mesh cut(world, {.tensor = world.size()});
    const auto losses = losses_on(cut), expected = losses_on(mesh_of_one());
    double difference = 0;
    for (std::size_t i = 0; i < losses.size(); ++i)
      difference = std::max(difference, std::abs(losses[i] - expected[i]) / expected[i]);
    if (world.rank() == 0)
      std::cout << "cut over " << world.size() << " ranks: loss " << losses.front() << " -> "
                << losses.back() << "; one rank alone differs by "
                << (difference < 1e-5 ? "less than 1e-5" : "more than 1e-5") << std::endl;
    return difference < 1e-5 && losses.back() < losses.front() ? 0 : 1;
  });
}
