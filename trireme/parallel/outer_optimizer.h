#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string_view>

namespace trireme::parallel {

/// What the replicas did between two meetings.
struct Block {
  double samples = 0;     ///< of all replicas together
  double inner_rate = 0;  ///< the learning rate of its last step
};

/// How replicas that train on their own come together again. Given the common starting point x of a
/// block and the weighted mean y of where the replicas ended, it makes the next starting point.
/// With d = y - x, what the replicas moved on average, and v, what it remembers:
///
///   average    x' = y
///   bmuf       v' = m v + r d;        x' = x + v'             (Chen and Huo 2016: block momentum m
///     nesterov                        x' = x + r d + m v'      and block learning rate r)
///   slowmo     v' = m v - d / g;      x' = x - r g v'         (Wang et al. 2019; g: inner rate)
///   diloco     v' = m v - d;          x' = x - r v'           (Douillard et al. 2023: torch's SGD
///     nesterov                        x' = x - r (m v' - d)    on the outer gradient -d)
///
/// All of them work element by element. Derive from this class to add one.
class OuterOptimizer {
 public:
  virtual ~OuterOptimizer() = default;

  /// For checkpoints: a run that continues with another one forgets v.
  virtual std::string_view name() const = 0;
  /// Does it remember a v for each element?
  virtual bool remembers() const { return true; }

  /// Turns `start` into the next starting point, in place. `velocity` is v, zeros before the first
  /// block; undefined if it remembers nothing.
  virtual void advance(const at::Tensor& start, const at::Tensor& mean, const at::Tensor& velocity,
                       const Block& block) const = 0;
};

/// Takes the mean: model averaging.
std::shared_ptr<const OuterOptimizer> make_averaging();

struct OuterOptions {
  double momentum = 0.9;
  double lr = 1;
  bool nesterov = true;
  /// Bmuf: if over 0, the momentum of a block is exp(-samples / time_constant), so that it does not
  /// depend on how long blocks are.
  double time_constant = 0;
};
std::shared_ptr<const OuterOptimizer> make_bmuf(OuterOptions options);
std::shared_ptr<const OuterOptimizer> make_slowmo(OuterOptions options);
std::shared_ptr<const OuterOptimizer> make_diloco(OuterOptions options);

}  // namespace trireme::parallel
