#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trireme/mesh/mesh.h"
#include "trireme/nn/init_rule.h"
#include "trireme/nn/parameters.h"

namespace trireme::nn {

/// The layouts of a layer's parameters, by name.
using Layouts = std::map<std::string, Layout>;

/// How one parameter is cut and initialized, and which rank's part of it the tensor is.
struct DeclaredParameter {
  Layout layout;
  InitRule init;
  Coord coord = {};      ///< of the rank ...
  Degrees degrees = {};  ///< ... on a mesh of these degrees
};

/// The parameters of one layer, without those of the layers below it: the ones that it declares
/// itself, and the tied ones that it shares with the layer that declares them.
class DeclaredParameters {
 public:
  /// Declares a parameter and returns its tensor, which has no memory under nn::Deferred. Its
  /// values come with `initialize`.
  at::Tensor declare(const std::string& name, std::vector<int64_t> shape, InitRule init);
  /// Adds a parameter that another layer declares.
  void add_tied(const std::string& name, const at::Tensor& tensor);

  /// True if the layer declares none itself.
  bool empty() const { return declared_.empty(); }
  /// Returns nullptr if this layer does not declare it.
  const DeclaredParameter* find(const std::string& name) const;
  DeclaredParameter* find(const std::string& name);

  /// Records which parameter of the whole model a tied one is. It is needed where the layer that
  /// declares it is missing: on another stage of a pipeline.
  void set_tied_to(const std::string& name, Parameter parameter);
  const Parameter* tied_to(const std::string& name) const;

  /// Layouts in which every parameter is whole, and its gradient a partial sum over these axes.
  Layouts whole_layouts(const std::vector<Axis>& partial) const;
  /// Gives the parameters these layouts, and their tensors the shapes of this rank's parts.
  void cut(const Layouts& layouts, const Coord& coord, const Degrees& degrees);

  /// Throws if a parameter has no memory. (Not every libtorch notices it.)
  void check_memory(const std::string& layer_name) const;

  /// The seed of the run. `initialize` sets it; it is 0 before.
  void set_seed(uint64_t seed);
  uint64_t seed() const { return seed_; }
  bool is_initialized() const { return is_initialized_; }

 private:
  std::vector<std::pair<std::string, at::Tensor>> tensors_;  // declared and tied, in order
  std::map<std::string, DeclaredParameter> declared_;
  std::map<std::string, Parameter> tied_to_;
  uint64_t seed_ = 0;
  bool is_initialized_ = false;
};

}  // namespace trireme::nn
