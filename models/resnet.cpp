#include "models/resnet.h"

#include <cmath>

#include "models/uncut.h"

namespace trireme::models {

using nn::Flow;

namespace {

nn::Conv2d make_conv(const ConvSize& size, const ResNetOptions& options) {
  const auto fan_out = static_cast<double>(size.kernel * size.kernel * size.out);
  return nn::Conv2d(nn::Conv2dImpl::Options{.in = size.in,
                                            .out = size.out,
                                            .kernel = size.kernel,
                                            .stride = size.stride,
                                            .padding = size.kernel / 2,
                                            .bias = false,
                                            .deviation = std::sqrt(2 / fan_out),
                                            .format = options.format});
}

enum class Relu : uint8_t { Yes, No };

nn::BatchNorm make_norm(int64_t channels, const ResNetOptions& options, Relu relu) {
  return nn::BatchNorm(channels, nn::BatchNormImpl::Options{.relu = relu == Relu::Yes,
                                                            .all_ranks = options.all_ranks});
}

ConvSize stem_of(const ResNetOptions& options) {
  const bool small = options.stem == ResNetOptions::Stem::Cifar;
  return {.in = options.channels,
          .out = options.width,
          .kernel = small ? 3 : 7,
          .stride = small ? 1 : 2};
}

}  // namespace

std::vector<std::vector<ConvSize>> resnet_blocks(const ResNetOptions& options) {
  const bool deep = options.depth == 50;
  const std::vector<int> counts = deep ? std::vector{3, 4, 6, 3} : std::vector{2, 2, 2, 2};
  const int64_t expansion = deep ? 4 : 1;
  std::vector<std::vector<ConvSize>> blocks;
  int64_t in = options.width, width = options.width;
  for (std::size_t stage = 0; stage < counts.size(); ++stage, width *= 2) {
    for (int i = 0; i < counts[stage]; ++i) {
      const int64_t stride = stage > 0 && i == 0 ? 2 : 1, out = width * expansion;
      if (deep)
        blocks.push_back({{in, width, 1, 1}, {width, width, 3, stride}, {width, out, 1, 1}});
      else
        blocks.push_back({{in, width, 3, stride}, {width, out, 3, 1}});
      in = out;
    }
  }
  return blocks;
}

ResidualBlockImpl::ResidualBlockImpl(const std::vector<ConvSize>& convs,
                                     const ResNetOptions& options) {
  int64_t stride = 1;
  for (std::size_t i = 0; i < convs.size(); ++i) {
    const std::string number = std::to_string(i + 1);
    convs_.push_back(register_module("conv" + number, make_conv(convs[i], options)));
    norms_.push_back(register_module("bn" + number, make_norm(convs[i].out, options, Relu::Yes)));
    stride *= convs[i].stride;
  }
  const int64_t in = convs.front().in, out = convs.back().out;
  if (in == out && stride == 1) return;
  downsample_ = std::make_shared<nn::SequentialImpl>();
  downsample_->push_back(
      make_conv({.in = in, .out = out, .kernel = 1, .stride = stride}, options).ptr());
  downsample_->push_back(make_norm(out, options, Relu::No).ptr());
  register_module("downsample", downsample_);
}

Flow ResidualBlockImpl::compute(const Flow& in) {
  const Flow shortcut = downsample_ == nullptr ? in : downsample_->forward(in);
  Flow flow = in;
  for (std::size_t i = 0; i < convs_.size(); ++i) {
    flow = convs_[i]->forward(std::move(flow));
    // The last norm adds the shortcut before its ReLU.
    if (i + 1 == convs_.size()) flow.tensors.push_back(shortcut.x());
    flow = norms_[i]->forward(std::move(flow));
  }
  return flow;
}

ResNetImpl::ResNetImpl(const ResNetOptions& options, const Mesh& mesh) : options_(options) {
  require_uncut(mesh, "resnet");
  if (mesh.size(Axis::Tensor) != 1)
    throw ConfigError(
        fmt::format("resnet cannot be cut {} ways along tensor: its convolutions are whole on "
                    "every rank; it can be replicated, sharded, and cut along pipe",
                    mesh.size(Axis::Tensor)));
  if (options.depth != 18 && options.depth != 50)
    throw ConfigError(fmt::format("resnet: model.depth = {}; there are 18 and 50", options.depth));
  const ConvSize stem = stem_of(options);
  conv1 = register_module("conv1", make_conv(stem, options));
  bn1 = register_module("bn1", make_norm(stem.out, options, Relu::Yes));
  if (options.stem == ResNetOptions::Stem::ImageNet)
    maxpool = register_module("maxpool", nn::MaxPool2d(3, 2, 1));
  std::vector<std::shared_ptr<torch::nn::Module>> stages;
  std::size_t in_stage = 0;
  for (const auto& convs : resnet_blocks(options)) {
    // A stage begins where the width doubles: its blocks are "layer2.0", "layer2.1", ...
    const bool begins = convs[0].out != (options.width << stages.size()) / 2;
    if (stages.empty() || begins) {
      stages.push_back(std::make_shared<torch::nn::Module>());
      register_module("layer" + std::to_string(stages.size()), stages.back());
      in_stage = 0;
    }
    const std::string number = std::to_string(in_stage++);
    blocks_.emplace_back(fmt::format("layer{}.{}", stages.size(), number),
                         stages.back()->register_module(number, ResidualBlock(convs, options)));
  }
  avgpool = register_module("avgpool", nn::GlobalAveragePool());
  fc = register_module("fc", nn::Head(resnet_blocks(options).back().back().out, options.classes,
                                      nn::HeadImpl::Options{}));
}

Flow ResNetImpl::begin(const Flow& images) {
  const Flow flow = bn1->forward(conv1->forward(images));
  return maxpool.is_empty() ? flow : maxpool->forward(flow);
}

Flow ResNetImpl::pooled(const Flow& in) {
  return avgpool->forward(in);
}

nn::Chain ResNetImpl::chain() {
  nn::Chain chain;
  nn::Link stem{.name = "stem",
                .layers = {conv1.ptr(), bn1.ptr()},
                .run = [this](const Flow& images) { return begin(images); },
                .counts = false};
  if (!maxpool.is_empty()) stem.layers.push_back(maxpool.ptr());
  chain.links.push_back(std::move(stem));
  for (const auto& [name, block] : blocks_)
    chain.links.push_back({.name = name, .layers = {block.ptr()}});
  chain.head = {.name = "head", .layers = {avgpool.ptr(), fc.ptr()}, .counts = false};
  chain.loss = [this](const Flow& in, const at::Tensor& targets) {
    return nn::classify(*fc, pooled(in), targets);
  };
  return chain;
}

std::optional<nn::MicroBatch> ResNetImpl::example(int64_t rows) const {
  return nn::counting_images({rows, options_.channels, options_.image, options_.image},
                             options_.classes);
}

Flow ResNetImpl::compute(const Flow& images) {
  Flow flow = begin(images);
  for (const auto& [name, block] : blocks_) flow = block.ptr()->forward(std::move(flow));
  return fc->forward(pooled(flow));
}

std::vector<std::shared_ptr<nn::LayerImpl>> ResNetImpl::blocks() const {
  std::vector<std::shared_ptr<nn::LayerImpl>> all;
  for (const auto& [name, block] : blocks_) all.push_back(block.ptr());
  return all;
}

namespace {

/// The elements that a block or the stem has for each image.
struct BlockElements {
  int64_t in = 0, out = 0;  ///< its input and its output
  int64_t kept = 0;         ///< for backward: of each convolution and of each norm the output
  int64_t largest = 0;      ///< of its tensors
};

BlockElements elements_of(const std::vector<ConvSize>& convs, bool has_shortcut, int64_t& pixels) {
  BlockElements all{.in = convs.front().in * pixels * pixels};
  all.largest = all.in;
  for (const ConvSize& conv : convs) {
    pixels = (pixels + conv.stride - 1) / conv.stride;
    const int64_t out = conv.out * pixels * pixels;
    all.kept += 2 * out;
    all.largest = std::max(all.largest, out);
  }
  all.out = convs.back().out * pixels * pixels;
  if (has_shortcut) all.kept += all.out;  // of its norm the input
  return all;
}

}  // namespace

/// The peak is in the backward of some block: everything up to it is kept, and there are a few
/// gradients of its size.
int64_t ResNetImpl::activation_bytes(const nn::Batching& of) const {
  constexpr int64_t kGradients = 3;  // of a norm's output and input, and of the stream
  constexpr int64_t kWeights = 2;    // a weight's gradient, and the same in another memory format
  const bool again = of.recompute == nn::Batching::Recompute::Block;
  int64_t pixels = options_.image, kept = 0, peak = 0;  // kept: elements of one image
  const auto add = [&](const std::vector<ConvSize>& convs, bool has_shortcut, bool recomputed) {
    const BlockElements one = elements_of(convs, has_shortcut, pixels);
    kept += recomputed ? one.out : one.kept;
    int64_t weight = 0;
    for (const ConvSize& conv : convs)
      weight = std::max(weight, conv.in * conv.out * conv.kernel * conv.kernel);
    const int64_t at_a_time = (recomputed ? one.kept : 0) + kGradients * one.largest;
    peak = std::max(peak, of.rows * (kept + at_a_time) + kWeights * weight);
  };
  add({stem_of(options_)}, false, false);
  if (!maxpool.is_empty()) {
    pixels = (pixels + 1) / 2;
    kept += 3 * options_.width * pixels * pixels;  // its output, and int64 indices
  }
  const auto blocks = resnet_blocks(options_);
  for (const auto& convs : blocks) {
    int64_t stride = 1;
    for (const ConvSize& conv : convs) stride *= conv.stride;
    add(convs, stride != 1 || convs.front().in != convs.back().out, again);
  }
  // Of a pipeline's stage: its share of the blocks, as if all were alike.
  const double share =
      of.layers < 0 ? 1 : of.layers / static_cast<double>(std::max<std::size_t>(1, blocks.size()));
  return static_cast<int64_t>(share * static_cast<double>(peak * of.item_bytes));
}

}  // namespace trireme::models
