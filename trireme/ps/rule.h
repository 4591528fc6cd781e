#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trireme::ps {

/// A row (or a dense block) on a server: its values, and what the rule keeps for it.
template <class T>
struct Row {
  std::span<T> values;
  std::span<T> state;  ///< zeros at first
};

/// The learning rate and the weight decay of an update, as factors of the rule's own, and what sums
/// of gradients are divided by.
struct Step {
  double rate = 1;
  double divisor = 1;
  double decay = 1;
};

/// What a rule keeps for a row of n values: | array 0: n | array 1: n | ... | scalars |. Arrays
/// have names, under which checkpoints hold them.
struct StateLayout {
  std::vector<std::string> arrays = {};
  size_t scalars = 0;
  size_t elems(size_t row_elems) const { return arrays.size() * row_elems + scalars; }
};

/// How a gradient changes a row. Servers of one range must get the same bits, so a rule is a
/// function of its arguments alone.
///
/// A row of a sparse table changes only when a gradient names it. So AdamW decays a row, and ages
/// its moments, at the steps that touch it and not at the others; its step count is the row's own.
class Rule {
 public:
  virtual ~Rule() = default;
  /// Such as "sgd lr 0.1 momentum 0.9": all nodes of a job must say the same.
  virtual std::string describe() const = 0;
  virtual StateLayout state() const = 0;
  /// Whether each value depends on its own gradient and state alone. Dense tables, which are cut
  /// anywhere, need that.
  virtual bool is_elementwise() const { return true; }
  /// May use the gradient's memory as it likes.
  virtual void apply(Row<float> row, std::span<float> gradient, const Step& step) const = 0;
  virtual void apply(Row<double> row, std::span<double> gradient, const Step& step) const = 0;
};

/// One rule is one class with `describe`, `state` and one template, which gets divided gradients:
///
///   struct Sign : TypedRule<Sign> {
///     std::string describe() const override { return "sign"; }
///     StateLayout state() const override { return {}; }
///     template <class T>
///     void update(Row<T> row, std::span<const T> gradient, const Step& step) const {...}
///   };
template <class Derived>
class TypedRule : public Rule {
 public:
  void apply(Row<float> row, std::span<float> gradient, const Step& step) const final {
    apply_typed(row, gradient, step);
  }
  void apply(Row<double> row, std::span<double> gradient, const Step& step) const final {
    apply_typed(row, gradient, step);
  }

 private:
  template <class T>
  void apply_typed(Row<T> row, std::span<T> gradient, const Step& step) const {
    if (const T divisor = static_cast<T>(step.divisor); divisor != T(1))
      for (T& value : gradient) value /= divisor;
    static_cast<const Derived*>(this)->update(row, std::span<const T>(gradient), step);
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
/// One h for a row: h += mean(g g). For sparse tables.
RulePtr make_rowwise_adagrad(AdagradOptions options);

/// Workers push weights, not gradients: x += share (pushed - x). In lockstep with share 1 the
/// weights become the mean of the workers'.
RulePtr make_averaging(double share);

/// Workers push values that take the place of those there: x = pushed, whatever the divisor. Where
/// several are pushed for one update, as in lockstep, all but one must have the weight 0.
RulePtr make_latest();

}  // namespace trireme::ps
