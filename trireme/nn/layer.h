#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/layout/layout.h"
#include "trireme/mesh/mesh.h"
#include "trireme/nn/flow.h"
#include "trireme/nn/init_rule.h"
#include "trireme/nn/parameters.h"
#include "trireme/nn/region.h"
#include "trireme/nn/style.h"

namespace trireme::nn {

/// What stands around a layer's computation, from the outside in.
enum class Seam : uint8_t { Profile, Recompute, Unshard };

/// A module that maps a Flow to a Flow, with a seam around the call.
///
///   forward ──> profile ──> recompute ──> unshard ──> compute
///
/// The seam is where things attach to a model from outside: recomputation replaces the call, the
/// prover looks on, sharding gathers weights on the way in and lets them go on the way out (so a
/// layer's parameters are its own: others use them only through a call of the layer). A model never
/// calls a collective; the layers that are cut do, through their region.
///
/// A layer of your own derives from it, declares its parameters by `parameter`, and writes
/// `compute(x, where)`, or `compute(Flow)` where it handles more than one tensor.
class LayerImpl : public torch::nn::Module {
 public:
  using Call = std::function<Flow(Flow)>;
  using Hook = std::function<Flow(Flow, const Call& inner)>;

  /// Runs the hooks around `compute`. Not virtual: nobody can step around them.
  Flow forward(Flow in);
  at::Tensor forward(at::Tensor x) { return forward(Flow(std::move(x))).x(); }

  /// Adds a hook; of the same kind, a later one stands outside.
  void around(Seam kind, Hook hook);
  bool has_hook(Seam kind) const;

  /// Must the parameters still be there for the backward of the call that is running?
  bool backward_reads_weights() const { return backward_reads_weights_; }

  /// Its place in the whole model, as in "h.0.attn"; empty until the root was named
  /// (`name_layers`).
  const std::string& full_name() const { return full_name_; }

  /// Of the run, for what depends on chance; set by `initialize`.
  uint64_t seed() const { return seed_; }

  /// How a parameter of this layer itself is cut and begun, and whose part this is.
  struct Declared {
    Layout layout;
    InitRule init;
    Coord coord = {};
    Degrees degrees = {};
  };
  const Declared* declared(const std::string& parameter) const;

  /// A tied parameter of this layer is this one of the whole model: also where the layer that
  /// declares it is not there, as on another stage of a pipeline.
  void adopt(const std::string& parameter, Parameter known_as);
  const Parameter* adopted(const std::string& parameter) const;

  /// The rule by which a parameter begins, to be changed before `initialize`.
  InitRule& init_rule(const std::string& parameter);

  /// The layouts of this layer's own parameters when it is cut so. Throws MisuseError where it
  /// cannot be. Every layer can be Whole and Positions: its gradients are then partial sums where
  /// positions are cut.
  virtual std::map<std::string, Layout> layouts(Style style, Sequence sequence) const;

  /// Throws MisuseError, with the numbers, unless every rank of the mesh would get a part.
  void check_cut(Style style, const Mesh& mesh) const;

  /// Makes this rank's part of the layer out of the whole; `cut` of a plan calls it.
  void cut(Style style, const Mesh& mesh, RegionPtr region);

  Style style() const { return style_; }
  /// The ranks it computes with; nullptr where it was never cut.
  const RegionPtr& region() const { return region_; }

  /// How the output lies on the mesh, for who compares it with one rank's: cut by samples, by
  /// positions where the Flow says so, and by these (a dim of -1 is the last). None: nobody can
  /// tell, and it is not compared.
  using Output = std::optional<std::vector<Cut>>;
  virtual Output output() const;
  /// Says it, where the layer's style does not.
  void set_output(Output output) { output_ = std::move(output); }

 protected:
  /// The cut of the output's features that the style brings, where it brings one.
  virtual std::optional<Cut> feature_cut() const { return std::nullopt; }

  virtual at::Tensor compute(const at::Tensor& x, const Where* where);
  virtual Flow compute(const Flow& in);

  /// Makes and registers a parameter; its values come with `initialize`.
  at::Tensor parameter(const std::string& name, std::vector<int64_t> shape, InitRule init);

  /// For what a layer does besides `compute`: runs `body` inside the Unshard hooks alone. Where
  /// `backward_reads` is false its backward can do without the parameters.
  Flow with_weights(Flow in, const Call& body, bool backward_reads);

  /// The same of `compute`.
  void set_backward_reads_weights(bool reads) { backward_reads_weights_ = reads; }

  /// Registers a parameter of another layer as one of this one's too: a tied weight.
  at::Tensor tied(const std::string& name, const at::Tensor& other);

 private:
  friend void name_layers(torch::nn::Module& root);
  friend void initialize(torch::nn::Module& root, uint64_t seed);

  void check_weights() const;

  std::list<std::pair<Seam, Hook>> hooks_;  // innermost first; a graph may point at them
  std::vector<std::pair<std::string, at::Tensor>>
      own_;  // parameters that were declared or tied here
  std::map<std::string, Declared> declared_;
  std::map<std::string, Parameter> adopted_;
  std::string full_name_;
  uint64_t seed_ = 0;
  bool initialized_ = false, backward_reads_weights_ = true;
  Style style_ = Style::Whole;
  RegionPtr region_;
  std::optional<Output> output_;  // if it was said
};

/// Tells every layer below `root` its full name. Once: what has a name keeps it.
void name_layers(torch::nn::Module& root);

/// A torch module cannot be cut: its gradients would not be what a layout says.
[[noreturn]] void throw_foreign(const std::string& layer, std::string_view style);

/// Gives any torch module a seam; its parameters keep their names below the layer's.
template <class Holder>
std::shared_ptr<LayerImpl> as_layer(Holder module);

/// Layers one after the other, each given the Flow whole.
class SequentialImpl : public LayerImpl {
 public:
  SequentialImpl() = default;
  explicit SequentialImpl(const std::vector<std::shared_ptr<LayerImpl>>& layers);
  void push_back(std::shared_ptr<LayerImpl> layer);
  const std::vector<std::shared_ptr<LayerImpl>>& layers() const { return layers_; }
  Output output() const override;

 protected:
  Flow compute(const Flow& in) override;

 private:
  std::vector<std::shared_ptr<LayerImpl>> layers_;
};
TORCH_MODULE(Sequential);

// --- as_layer

template <class Holder>
class ForeignLayerImpl : public LayerImpl {
 public:
  explicit ForeignLayerImpl(Holder module)
      : module_(register_module("module", std::move(module))) {}

  std::map<std::string, Layout> layouts(Style style, Sequence sequence) const override {
    if (style != Style::Whole && !module_->parameters().empty())
      throw_foreign(full_name(), to_string(style));
    return LayerImpl::layouts(style, sequence);
  }

 protected:
  at::Tensor compute(const at::Tensor& x, const Where* where) override {
    if (where != nullptr && where->cut_from && !module_->parameters().empty())
      throw_foreign(full_name(), "positions");
    return module_->forward(x);
  }
  using LayerImpl::compute;

 private:
  Holder module_;
};

template <class Holder>
std::shared_ptr<LayerImpl> as_layer(Holder module) {
  return std::make_shared<ForeignLayerImpl<Holder>>(std::move(module));
}

}  // namespace trireme::nn
