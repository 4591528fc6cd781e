#include "trireme/ps/rule.h"

#include <algorithm>
#include <cmath>

#include "trireme/core/error.h"

namespace trireme::ps {

namespace {

// Values, state and gradient lie in different places. Loops that know it (__restrict) need not look
// first, nor read what they have written: of a row that is not in the cache that is half of the
// time.

class Sgd final : public TypedRule<Sgd> {
 public:
  explicit Sgd(SgdOptions options) : options_(options) {}
  std::string describe() const override {
    return fmt::format("sgd lr {} momentum {} weight_decay {}", options_.lr, options_.momentum,
                       options_.weight_decay);
  }
  StateLayout state() const override {
    if (options_.momentum == 0) return {};
    return {.arrays = {"momentum"}};
  }
  template <class T>
  void update(Row<T> row, std::span<const T> gradient, const Step& step) const {
    const T lr = static_cast<T>(options_.lr * step.rate);
    const T decay = static_cast<T>(options_.weight_decay * step.decay);
    const T momentum = static_cast<T>(options_.momentum);
    T* const __restrict values = row.values.data();
    T* const __restrict velocity = row.state.data();
    const T* const __restrict g = gradient.data();
    const size_t count = gradient.size();
    if (momentum == T(0)) {
      for (size_t i = 0; i < count; ++i) values[i] -= lr * (g[i] + decay * values[i]);
      return;
    }
    for (size_t i = 0; i < count; ++i) {
      const T move = momentum * velocity[i] + (g[i] + decay * values[i]);
      velocity[i] = move;
      values[i] -= lr * move;
    }
  }

 private:
  SgdOptions options_;
};

class AdamW final : public TypedRule<AdamW> {
 public:
  explicit AdamW(AdamWOptions options) : options_(options) {}
  std::string describe() const override {
    return fmt::format("adamw lr {} betas {} {} epsilon {} weight_decay {}", options_.lr,
                       options_.beta1, options_.beta2, options_.epsilon, options_.weight_decay);
  }
  /// The scalar counts steps.
  StateLayout state() const override { return {{"exp_avg", "exp_avg_sq"}, 1}; }
  template <class T>
  void update(Row<T> row, std::span<const T> gradient, const Step& step) const {
    constexpr double kMostSteps = 1 << 24;  // a float counts no further, and the bias is gone
    const double steps = std::min(static_cast<double>(row.state.back()) + 1, kMostSteps);
    row.state.back() = static_cast<T>(steps);
    const size_t count = gradient.size();
    T* const __restrict values = row.values.data();
    T* const __restrict first = row.state.data();
    T* const __restrict second = row.state.data() + count;
    const T* const __restrict g = gradient.data();
    const double lr = options_.lr * step.rate;
    const T step_size = static_cast<T>(lr / (1 - std::pow(options_.beta1, steps)));
    const T second_bias = static_cast<T>(std::sqrt(1 - std::pow(options_.beta2, steps)));
    const T beta1 = static_cast<T>(options_.beta1), beta2 = static_cast<T>(options_.beta2);
    const T epsilon = static_cast<T>(options_.epsilon);
    const T shrink = static_cast<T>(1 - lr * options_.weight_decay * step.decay);
    for (size_t i = 0; i < count; ++i) {
      first[i] = beta1 * first[i] + (T(1) - beta1) * g[i];
      second[i] = beta2 * second[i] + (T(1) - beta2) * g[i] * g[i];
      const T denominator = std::sqrt(second[i]) / second_bias + epsilon;
      values[i] = shrink * values[i] - step_size * first[i] / denominator;
    }
  }

 private:
  AdamWOptions options_;
};

class Adagrad final : public TypedRule<Adagrad> {
 public:
  explicit Adagrad(AdagradOptions options) : options_(options) {}
  std::string describe() const override {
    return fmt::format("adagrad lr {} epsilon {}", options_.lr, options_.epsilon);
  }
  StateLayout state() const override { return {.arrays = {"sum"}}; }
  template <class T>
  void update(Row<T> row, std::span<const T> gradient, const Step& step) const {
    const T lr = static_cast<T>(options_.lr * step.rate);
    const T epsilon = static_cast<T>(options_.epsilon);
    T* const __restrict values = row.values.data();
    T* const __restrict sums = row.state.data();
    const T* const __restrict g = gradient.data();
    for (size_t i = 0; i < gradient.size(); ++i) {
      sums[i] += g[i] * g[i];
      values[i] -= lr * g[i] / (std::sqrt(sums[i]) + epsilon);
    }
  }

 private:
  AdagradOptions options_;
};

class RowwiseAdagrad final : public TypedRule<RowwiseAdagrad> {
 public:
  explicit RowwiseAdagrad(AdagradOptions options) : options_(options) {}
  std::string describe() const override {
    return fmt::format("row-wise adagrad lr {} epsilon {}", options_.lr, options_.epsilon);
  }
  StateLayout state() const override { return {.scalars = 1}; }
  bool is_elementwise() const override { return false; }
  template <class T>
  void update(Row<T> row, std::span<const T> gradient, const Step& step) const {
    T squares = 0;
    for (const T value : gradient) squares += value * value;
    row.state[0] += squares / static_cast<T>(gradient.size());
    const T step_size = static_cast<T>(options_.lr * step.rate) /
                        (std::sqrt(row.state[0]) + static_cast<T>(options_.epsilon));
    T* const __restrict values = row.values.data();
    const T* const __restrict g = gradient.data();
    for (size_t i = 0; i < gradient.size(); ++i) values[i] -= step_size * g[i];
  }

 private:
  AdagradOptions options_;
};

class Averaging final : public TypedRule<Averaging> {
 public:
  explicit Averaging(double share) : share_(share) {}
  std::string describe() const override { return fmt::format("averaging {}", share_); }
  StateLayout state() const override { return {}; }
  template <class T>
  void update(Row<T> row, std::span<const T> pushed, const Step& step) const {
    const T share = static_cast<T>(share_ * step.rate);
    T* const __restrict values = row.values.data();
    const T* const __restrict other = pushed.data();
    for (size_t i = 0; i < pushed.size(); ++i) values[i] += share * (other[i] - values[i]);
  }

 private:
  double share_;
};

class Latest final : public Rule {
 public:
  std::string describe() const override { return "latest"; }
  StateLayout state() const override { return {}; }
  void apply(Row<float> row, std::span<float> pushed, const Step&) const override {
    std::ranges::copy(pushed, row.values.begin());
  }
  void apply(Row<double> row, std::span<double> pushed, const Step&) const override {
    std::ranges::copy(pushed, row.values.begin());
  }
};

}  // namespace

RulePtr make_sgd(SgdOptions options) {
  return std::make_shared<Sgd>(options);
}

RulePtr make_adamw(AdamWOptions options) {
  return std::make_shared<AdamW>(options);
}

RulePtr make_adagrad(AdagradOptions options) {
  return std::make_shared<Adagrad>(options);
}

RulePtr make_rowwise_adagrad(AdagradOptions options) {
  return std::make_shared<RowwiseAdagrad>(options);
}

RulePtr make_averaging(double share) {
  return std::make_shared<Averaging>(share);
}

RulePtr make_latest() {
  return std::make_shared<Latest>();
}

}  // namespace trireme::ps
