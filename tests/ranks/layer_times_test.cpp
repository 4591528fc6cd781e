// The rows of a GPU in trace.json, with a clock that needs none.
#include "trireme/train/layer_times.h"

#include <gmock/gmock.h>

#include <torch/torch.h>

#include <map>

#include "models/gpt.h"
#include "support/on_gpu.h"
#include "support/tiny_model.h"
#include "trireme/core/json.h"
#include "trireme/nn/parameters.h"

namespace trireme::test {
namespace {

/// A device that is as far as the host, or far behind it.
class HostClock final : public train::StreamClock {
 public:
  explicit HostClock(bool late) : late_(late) {}
  MarkPtr mark() override {
    auto mark = std::make_shared<Moment>();
    mark->time = core::Trace::Clock::now();
    return mark;
  }
  bool has_reached(const Mark&) const override { return !late_; }
  Time time_of(const MarkPtr& mark) override { return static_cast<const Moment&>(*mark).time; }

 private:
  struct Moment final : Mark {
    Time time;
  };
  bool late_;
};

struct Interval {
  double begin = 0, end = 0;
};

/// What the trace of one training step says about the GPU.
std::map<std::string, Interval> trace_of_step(std::unique_ptr<train::StreamClock> clock,
                                              c10::Device device) {
  const models::GptOptions options{.layers = 2, .hidden = 16, .heads = 2, .seq = 8, .vocab = 32};
  models::Gpt model(options, mesh_of_one());
  nn::initialize(*model, 3);
  model->to(device);
  const auto trace = std::make_shared<core::Trace>(0, core::Trace::time_of_day());
  train::trace_layers(*model, trace, std::move(clock));
  const auto tokens = torch::randint(0, 32, {2, 8}, torch::kLong).to(device);
  model->loss(tokens, tokens).sum.backward();
  std::map<std::string, Interval> all;
  for (const auto& one : core::parse_json(core::Trace::merged({trace->take()}), "trace")) {
    if (one.at("ph") != "X") continue;
    const double begin = one.at("ts").get<double>();
    EXPECT_TRUE(
        all.emplace(one.at("name"), Interval{begin, begin + one.at("dur").get<double>()}).second)
        << one;
  }
  return all;
}

void expect_nested(const std::map<std::string, Interval>& spans) {
  for (const char* name :
       {"wte", "h.0", "h.1.attn", "h.1.mlp.c_fc", "ln_f", "lm_head", "h.0 backward",
        "h.1.attn backward", "h.0.ln_1 backward", "h.1.mlp.c_proj backward", "lm_head backward"})
    EXPECT_TRUE(spans.contains(name)) << name;
  EXPECT_FALSE(spans.contains("wte backward")) << "its input has no gradient";
  for (const char* pass : {"", " backward"}) {
    for (const char* layer : {".ln_1", ".attn", ".attn.c_attn", ".mlp.c_proj"}) {
      const Interval &whole = spans.at("h.1" + std::string(pass)),
                     part = spans.at("h.1" + std::string(layer) + pass);
      EXPECT_LE(whole.begin, part.begin) << layer << pass;
      EXPECT_GE(whole.end, part.end) << layer << pass;
    }
  }
  EXPECT_LE(spans.at("h.0").end, spans.at("h.1").begin);
  EXPECT_LE(spans.at("h.1 backward").end, spans.at("h.0 backward").begin);
}

TEST(LayerTimes, HaveForwardAndBackwardOfEveryLayerInsideOfItsBlock) {
  for (const bool late : {false, true})
    expect_nested(trace_of_step(std::make_unique<HostClock>(late), at::kCPU));
}

TEST(LayerTimes, AreThoseOfAGpu) {
  NEEDS_GPU();
  const c10::Device device(at::kCUDA, 0);
  trace_of_step(train::make_stream_clock(device), device);  // makes what is made once
  const auto spans = trace_of_step(train::make_stream_clock(device), device);
  expect_nested(spans);
  EXPECT_GT(spans.at("h.0.attn").end, spans.at("h.0.attn").begin);
}

}  // namespace
}  // namespace trireme::test
