// Gradients and running statistics of ResNet and ViT are those of PyTorch's, from the same weights.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <filesystem>
#include <fstream>

#include "models/resnet.h"
#include "models/vit.h"
#include "support/command.h"
#include "support/scratch.h"
#include "support/training.h"
#include "trireme/core/json.h"
#include "trireme/nn/parameters.h"

namespace trireme::test {
namespace {

constexpr double kSameAsTorch = 1e-9;  // in float64, through up to 53 convolutions

/// A model, what it was given and what came of it, as files that torch_images.py reads.
class Case {
 public:
  Case(std::string folder, core::Json& manifest) : folder_(std::move(folder)), manifest_(manifest) {
    manifest_["tensors"] = core::Json::object();
  }

  void put(const std::string& name, const at::Tensor& tensor) {
    manifest_["tensors"][name] = tensor.sizes().vec();
    const at::Tensor values = tensor.detach().to(torch::kDouble).contiguous();
    const std::filesystem::path path = folder_ + "/" + name + ".bin";
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary)
        .write(static_cast<const char*>(values.data_ptr()),
               static_cast<std::streamsize>(values.nbytes()));
  }

  void run(nn::ModelImpl& model, int64_t rows) {
    nn::initialize(model, 3);
    model.to(torch::kDouble);
    const nn::MicroBatch micro = *model.example(rows);
    const at::Tensor images = (micro.inputs.x().to(torch::kDouble) * 5).sin();
    put("images", images);
    put("targets", micro.targets);
    for (const auto& one : model.named_parameters()) put(one.key(), one.value());
    for (const auto& one : model.named_buffers()) put(one.key(), one.value());
    const nn::Loss loss = model.loss(nn::Flow(images, micro.inputs.where), micro.targets);
    loss.sum.backward();
    put("loss", loss.sum);
    for (const auto& one : model.named_parameters()) put("grad/" + one.key(), one.value().grad());
    for (const auto& one : model.named_buffers()) put("after/" + one.key(), one.value());
  }

 private:
  std::string folder_;
  core::Json& manifest_;
};

TEST(Images, HaveTorchsGradientsAndRunningStatistics) {
  at::set_num_threads(1);
  const Scratch scratch;
  core::Json manifest = core::Json::object();
  using Stem = models::ResNetOptions::Stem;
  for (const auto& [name, options] :
       {std::pair("resnet18-cifar", models::ResNetOptions{.classes = 7, .image = 16, .width = 16}),
        std::pair("resnet18-imagenet", models::ResNetOptions{.classes = 7,
                                       .image = 48,
                                       .channels = 1,
                                       .width = 16,
                                       .stem = Stem::ImageNet,
                                       .format = at::MemoryFormat::ChannelsLast}),
        std::pair("resnet50-cifar",
                  models::ResNetOptions{.depth = 50, .classes = 5, .image = 16, .width = 16}),
        std::pair(
            "resnet50-imagenet",
            models::ResNetOptions{
                .depth = 50, .classes = 5, .image = 64, .width = 16, .stem = Stem::ImageNet})}) {
    manifest[name] = {{"kind", "resnet"},
                      {"options",
                       {{"depth", options.depth},
                        {"classes", options.classes},
                        {"channels", options.channels},
                        {"width", options.width},
                        {"stem", options.stem == Stem::Cifar ? "cifar" : "imagenet"}}}};
    models::ResNet model(options, mesh_of_one());
    Case(scratch / name, manifest[name]).run(*model, 3);
  }
  const models::VitOptions vit{
      .layers = 3, .hidden = 24, .heads = 4, .ffn = 40, .classes = 6, .image = 16};
  manifest["vit"] = {{"kind", "vit"},
                     {"options",
                      {{"layers", vit.layers},
                       {"hidden", vit.hidden},
                       {"heads", vit.heads},
                       {"ffn", vit.ffn},
                       {"classes", vit.classes},
                       {"image", vit.image},
                       {"channels", vit.channels},
                       {"patch", vit.patch}}}};
  models::Vit model(vit, mesh_of_one());
  Case(scratch / "vit", manifest["vit"]).run(*model, 5);
  std::ofstream(scratch / "manifest.json") << manifest.dump();
  const auto result = run_command(
      {python_with_torch(), TRIREME_SOURCE_DIR "/tests/e2e/torch_images.py", scratch / ""},
      {.deadline = std::chrono::seconds(120)});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto report = core::parse_json(result.out, "torch_images.py's answer");
  EXPECT_EQ(report.size(), 5u);
  EXPECT_EQ(report.at("resnet18-cifar").size(), 1u + 62 + 60) << "a loss, gradients and buffers";
  for (const auto& [name, tensors] : report.items())
    for (const auto& [tensor, apart] : tensors.items())
      EXPECT_LE(apart.get<double>(), kSameAsTorch) << name << " " << tensor;
}

}  // namespace
}  // namespace trireme::test
