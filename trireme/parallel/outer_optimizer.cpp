#include "trireme/parallel/outer_optimizer.h"

#include <cmath>

#include "trireme/core/error.h"

namespace trireme::parallel {

namespace {

class Averaging final : public OuterOptimizer {
 public:
  std::string_view name() const override { return "average"; }
  bool remembers() const override { return false; }
  void advance(const at::Tensor& start, const at::Tensor& mean, const at::Tensor& /*velocity*/,
               const Block& /*block*/) const override {
    start.copy_(mean);
  }
};

class Bmuf final : public OuterOptimizer {
 public:
  explicit Bmuf(OuterOptions options) : options_(options) {}
  std::string_view name() const override { return "bmuf"; }
  void advance(const at::Tensor& start, const at::Tensor& mean, const at::Tensor& velocity,
               const Block& block) const override {
    const double momentum = options_.time_constant > 0
                                ? std::exp(-block.samples / options_.time_constant)
                                : options_.momentum;
    const at::Tensor moved = mean - start;
    velocity.mul_(momentum).add_(moved, options_.lr);
    if (options_.nesterov)
      start.add_(moved, options_.lr).add_(velocity, momentum);
    else
      start.add_(velocity);
  }

 private:
  OuterOptions options_;
};

class SlowMo final : public OuterOptimizer {
 public:
  explicit SlowMo(OuterOptions options) : options_(options) {}
  std::string_view name() const override { return "slowmo"; }
  void advance(const at::Tensor& start, const at::Tensor& mean, const at::Tensor& velocity,
               const Block& block) const override {
    const double rate = block.inner_rate;
    if (rate == 0) {  // only the last step of the block need have been at rate 0
      start.add_(mean - start, options_.lr);
      return;
    }
    velocity.mul_(options_.momentum).add_(start - mean, 1 / rate);
    start.add_(velocity, -options_.lr * rate);
  }

 private:
  OuterOptions options_;
};

class DiLoCo final : public OuterOptimizer {
 public:
  explicit DiLoCo(OuterOptions options) : options_(options) {}
  std::string_view name() const override { return "diloco"; }
  void advance(const at::Tensor& start, const at::Tensor& mean, const at::Tensor& velocity,
               const Block& /*block*/) const override {
    const at::Tensor gradient = start - mean;
    velocity.mul_(options_.momentum).add_(gradient);
    if (options_.nesterov)
      start.sub_(gradient.add_(velocity, options_.momentum), options_.lr);
    else
      start.sub_(velocity, options_.lr);
  }

 private:
  OuterOptions options_;
};

OuterOptions checked(std::string_view name, OuterOptions options) {
  core::check(options.momentum >= 0 && options.momentum < 1,
              "{}: a momentum of {} is out of range; it must be at least 0 and less than 1", name,
              options.momentum);
  core::check(options.lr > 0, "{}: an outer learning rate of {} moves nothing; it must be over 0",
              name, options.lr);
  core::check(options.time_constant >= 0, "{}: a time constant of {} samples is negative", name,
              options.time_constant);
  return options;
}

}  // namespace

std::shared_ptr<const OuterOptimizer> make_averaging() {
  return std::make_shared<Averaging>();
}
std::shared_ptr<const OuterOptimizer> make_bmuf(OuterOptions options) {
  return std::make_shared<Bmuf>(checked("bmuf", options));
}
std::shared_ptr<const OuterOptimizer> make_slowmo(OuterOptions options) {
  return std::make_shared<SlowMo>(checked("slowmo", options));
}
std::shared_ptr<const OuterOptimizer> make_diloco(OuterOptions options) {
  return std::make_shared<DiLoCo>(checked("diloco", options));
}

}  // namespace trireme::parallel
