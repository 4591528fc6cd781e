#include "trireme/worker/fused_rules.h"

#include <fmt/format.h>

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include "trireme/optim/fused.h"

namespace trireme::ps {

namespace {

/// A tensor of this memory, which torch does not own.
template <class T>
at::Tensor tensor_of(std::span<T> memory) {
  using Number = std::remove_const_t<T>;
  return at::from_blob(const_cast<Number*>(memory.data()), {static_cast<int64_t>(memory.size())},
                       c10::CppTypeToScalarType<Number>::value);
}

class FusedAdamW final : public TypedRule<FusedAdamW> {
 public:
  explicit FusedAdamW(const optim::AdamWOptions& options) : options_(options) {}
  std::string describe() const override {
    return fmt::format("fused adamw betas {} {} epsilon {} weight_decay {}", options_.beta1,
                       options_.beta2, options_.epsilon, options_.weight_decay);
  }
  /// The scalar counts updates.
  StateLayout state() const override { return {{"exp_avg", "exp_avg_sq"}, 1}; }

  template <class T>
  void update(Row<T> row, std::span<const T> gradient, const Step& step) const {
    const at::NoGradGuard guard;
    auto count = static_cast<float>(row.state.back()) + 1;
    row.state.back() = static_cast<T>(count);
    const size_t n = gradient.size();
    optim::AdamWOptions options = options_;
    options.weight_decay *= step.decay;
    optim::fused_adamw({{tensor_of(row.values)},
                        {tensor_of(gradient)},
                        {tensor_of(row.state.subspan(0, n))},
                        {tensor_of(row.state.subspan(n, n))},
                        {at::from_blob(&count, {}, at::kFloat)}},
                       options, step.rate, {});
  }

 private:
  optim::AdamWOptions options_;
};

class FusedSgd final : public TypedRule<FusedSgd> {
 public:
  explicit FusedSgd(const optim::SgdOptions& options) : options_(options) {}
  std::string describe() const override {
    return fmt::format("fused sgd momentum {} weight_decay {}", options_.momentum,
                       options_.weight_decay);
  }
  StateLayout state() const override {
    if (options_.momentum == 0) return {};
    return {.arrays = {"momentum"}};
  }

  template <class T>
  void update(Row<T> row, std::span<const T> gradient, const Step& step) const {
    const at::NoGradGuard guard;
    optim::SgdOptions options = options_;
    options.weight_decay *= step.decay;
    std::vector<at::Tensor> momenta;
    if (options.momentum != 0) momenta.push_back(tensor_of(row.state));
    optim::fused_sgd({{tensor_of(row.values)}, {tensor_of(gradient)}, std::move(momenta), {}, {}},
                     options, step.rate, {});
  }

 private:
  optim::SgdOptions options_;
};

}  // namespace

RulePtr make_fused_adamw(const optim::AdamWOptions& options) {
  return std::make_shared<FusedAdamW>(options);
}

RulePtr make_fused_sgd(const optim::SgdOptions& options) {
  return std::make_shared<FusedSgd>(options);
}

}  // namespace trireme::ps
