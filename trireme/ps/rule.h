#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace trireme::ps {

/// A row (or a dense block) on a server: its values, and what the rule keeps for it.
template <class T>
struct Row {
  std::span<T> values;
  std::span<T> state;  ///< zeros at first
};

/// How a gradient changes a row. Servers of one range must get the same bits, so a rule is a
/// function of its arguments alone.
///
/// A row of a sparse table changes only when a gradient names it. So AdamW decays a row, and ages
/// its moments, at the steps that touch it and not at the others; its step count is the row's own.
class Rule {
 public:
  virtual ~Rule() = default;
  /// Elements of state for a row of so many values.
  virtual size_t state_elems(size_t row_elems) const = 0;
  /// `rate` scales the rule's own learning rate.
  virtual void apply(Row<float> row, std::span<const float> gradient, double rate) const = 0;
  virtual void apply(Row<double> row, std::span<const double> gradient, double rate) const = 0;
};

/// One rule is one class with `state_elems` and one template:
///
///   struct Sign : TypedRule<Sign> {
///     size_t state_elems(size_t) const override { return 0; }
///     template <class T> void update(Row<T> row, std::span<const T> gradient, double rate) const
///     {...}
///   };
template <class Derived>
class TypedRule : public Rule {
 public:
  void apply(Row<float> row, std::span<const float> gradient, double rate) const final {
    static_cast<const Derived*>(this)->update(row, gradient, rate);
  }
  void apply(Row<double> row, std::span<const double> gradient, double rate) const final {
    static_cast<const Derived*>(this)->update(row, gradient, rate);
  }
};

using RulePtr = std::shared_ptr<const Rule>;

struct SgdOptions {
  double lr = 0.1;
  double momentum = 0;
  double weight_decay = 0;
};
/// v = momentum v + g + weight_decay x;  x -= lr v
RulePtr make_sgd(SgdOptions options);

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
};
RulePtr make_adamw(AdamWOptions options);

struct AdagradOptions {
  double lr = 0.01;
  double epsilon = 1e-10;
};
/// h += g g;  x -= lr g / (sqrt(h) + epsilon)
RulePtr make_adagrad(AdagradOptions options);
/// One h for a row: h += mean(g g).
RulePtr make_rowwise_adagrad(AdagradOptions options);

/// Workers push weights, not gradients: x += share (pushed - x). In lockstep with share 1 the
/// weights become the mean of the workers'.
RulePtr make_averaging(double share);

}  // namespace trireme::ps
