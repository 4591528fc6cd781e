// A tensor-parallel MLP and attention block equal torch.distributed.tensor's, on the same weights.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <fstream>

#include "support/backends.h"
#include "support/command.h"
#include "support/scratch.h"
#include "support/training.h"
#include "trireme/core/json.h"
#include "trireme/nn/gelu.h"
#include "trireme/nn/layers.h"
#include "trireme/nn/parameters.h"
#include "trireme/nn/plan.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using nn::Flow;
using nn::Style;

constexpr int64_t kRows = 2, kBlockPositions = 5, kBlockWidth = 16, kBlockWide = 24, kHeads = 4;
constexpr double kSameAsTorch = 1e-12;

struct MlpImpl : nn::LayerImpl {
  nn::Linear up{register_module("up", nn::Linear(kBlockWidth, kBlockWide))};
  nn::Linear down{register_module("down", nn::Linear(kBlockWide, kBlockWidth))};
  Flow compute(const Flow& in) override {
    const Flow inner = up->forward(in);
    return down->forward(inner.with(nn::gelu_tanh(inner.x())));
  }
};

/// What goes to the file: whole tensors by name.
using Tensors = std::map<std::string, at::Tensor>;

at::Tensor wave(at::IntArrayRef shape, double seed) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return torch::sin(torch::arange(count, torch::kDouble) * 1.7 + seed).view(shape);
}

/// Runs a block cut over the ranks; its values and gradients, put together.
void run_block(nn::LayerImpl& block, const nn::Plan& plan, const Mesh& mesh,
               const std::string& prefix, const std::map<std::string, std::string>& names,
               Tensors& to) {
  nn::cut(block, plan, mesh);
  block.to(torch::kDouble);
  nn::initialize(block, 11);
  const at::Tensor x = wave({kRows, kBlockPositions, kBlockWidth}, 0.3).requires_grad_();
  const at::Tensor dy = wave({kRows, kBlockPositions, kBlockWidth}, 2.1);
  const at::Tensor y = block.forward(x);
  y.backward(dy);
  const auto put = [&](const std::string& name, const nn::Parameter& one, const at::Tensor& part) {
    at::Tensor whole = torch::zeros(one.layout.whole(), torch::kDouble);
    for (const Reduction& box :
         reductions_of(one.layout, {}, mesh.degrees(), mesh.coord(), Policy{}))
      if (box.counts) nn::box_of(whole, box.box.box).copy_(nn::part_of(part, box.box));
    mesh.world().all_reduce(whole).wait();  // every element comes from one rank
    to[name] = whole;
  };
  for (const nn::Parameter& one : nn::parameters_of(block)) {
    const std::string name = prefix + "." + names.at(one.name);
    put(name, one, one.tensor.detach());
    put(name + ".grad", one, one.tensor.grad());
  }
  to[prefix + ".x"] = x.detach();
  to[prefix + ".dy"] = dy;
  to[prefix + ".y"] = y.detach();
  to[prefix + ".x.grad"] = x.grad();
}

void write(const Tensors& tensors, const std::string& folder) {
  core::Json manifest = {{"heads", kHeads}, {"tensors", core::Json::object()}};
  for (const auto& [name, tensor] : tensors) {
    manifest["tensors"][name] = tensor.sizes().vec();
    const at::Tensor values = tensor.contiguous();
    std::ofstream(folder + "/" + name + ".bin", std::ios::binary)
        .write(static_cast<const char*>(values.data_ptr()),
               static_cast<std::streamsize>(values.nbytes()));
  }
  std::ofstream(folder + "/manifest.json") << manifest.dump();
}

TEST(TensorParallel, EqualsTorchsColwiseAndRowwise) {
  const Scratch scratch;
  run_world(kThreads, 2, [&](const Communicator& world) {
    const Mesh mesh(world, {.tensor = 2});
    Tensors tensors;
    MlpImpl mlp;
    run_block(mlp, {{"up", Style::Column}, {"down", Style::Row}}, mesh, "mlp",
              {{"up.weight", "up.weight"},
               {"up.bias", "up.bias"},
               {"down.weight", "down.weight"},
               {"down.bias", "down.bias"}},
              tensors);
    nn::CausalAttentionImpl attention({.width = kBlockWidth,
                                       .heads = kHeads,
                                       .kv_heads = kHeads,
                                       .in_deviation = 0.5,
                                       .out_deviation = 0.5});
    run_block(attention, {{"c_attn", Style::Column}, {"c_proj", Style::Row}}, mesh, "attn",
              {{"c_attn.weight", "qkv.weight"},
               {"c_attn.bias", "qkv.bias"},
               {"c_proj.weight", "proj.weight"},
               {"c_proj.bias", "proj.bias"}},
              tensors);
    if (world.rank() == 0) write(tensors, scratch / "");
    world.barrier();
  });
  const auto result = run_command(
      {python_with_torch(), TRIREME_SOURCE_DIR "/tests/e2e/torch_tensor.py", scratch / ""},
      {.deadline = std::chrono::seconds(120)});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto report = core::parse_json(result.out, "torch_tensor.py's answer");
  EXPECT_EQ(report.at("tensors").size(), 12u) << "y, x.grad and four gradients, twice";
  EXPECT_LE(report.at("worst").get<double>(), kSameAsTorch) << result.out;
}

}  // namespace
}  // namespace trireme::test
