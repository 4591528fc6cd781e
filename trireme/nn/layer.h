#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/nn/declared_parameters.h"
#include "trireme/nn/flow.h"
#include "trireme/nn/layer_cut.h"

namespace trireme::nn {

/// The kinds of hooks around a layer's computation, outermost first.
enum class Seam : uint8_t { Profile, Recompute, Unshard, Time };

/// A module that maps a Flow to a Flow, with a seam around the call:
///
///   forward ──> profile ──> recompute ──> unshard ──> time ──> compute
///
/// Hooks attach to a model from outside at this seam. The prover watches the call, recomputation
/// replaces it, sharding gathers the layer's weights before it and releases them after it, and a
/// trace times what is left. (So other layers must not read a layer's parameters: they call the
/// layer.) A model never calls a collective; layers that are cut do, through their `region()`.
///
/// To write a layer, derive from this class, declare parameters with `parameter`, and write
/// `compute(x, where)`, or `compute(Flow)` for a layer of several tensors. To make it cuttable,
/// write `layouts` and, if the style cuts its output's features, `feature_cut`.
class LayerImpl : public torch::nn::Module {
 public:
  /// One call of a layer, as the hooks around it see it.
  struct Call {
    FlowFunction run;
    /// Does the backward of this call read the layer's parameters? If not, they may be released as
    /// soon as `run` returns.
    bool backward_reads_weights = true;

    Flow operator()(Flow in) const { return run(std::move(in)); }
  };
  /// Runs `inner` and returns its output; it may change both Flows, or run `inner` again later.
  using Hook = std::function<Flow(Flow in, const Call& inner)>;

  /// Runs `compute` inside of the hooks. It is not virtual, so that no layer bypasses them.
  Flow forward(Flow in);
  at::Tensor forward(at::Tensor x) { return forward(Flow(std::move(x))).x(); }

  /// Adds a hook. Of two hooks of one kind, the later one runs outside of the earlier.
  void around(Seam kind, Hook hook);
  bool has_hook(Seam kind) const;

  /// The name in the whole model, such as "h.0.attn". Empty until `name_layers` has named the root.
  const std::string& full_name() const { return full_name_; }

  /// The parameters of this layer itself.
  DeclaredParameters& declared() { return declared_; }
  const DeclaredParameters& declared() const { return declared_; }
  /// The rule that initializes a parameter; change it before `initialize`.
  InitRule& init_rule(const std::string& parameter);
  /// The seed of the run, for layers that draw random numbers; set by `initialize`.
  uint64_t seed() const { return declared_.seed(); }

  /// The dtype of activations, if it is not that of the layer's own parameters: a table of float32
  /// may belong to a model that computes in 16 bits.
  void set_compute_dtype(at::ScalarType dtype) { compute_dtype_ = dtype; }
  std::optional<at::ScalarType> compute_dtype() const { return compute_dtype_; }

  /// How this layer is cut over the mesh.
  LayerCut& cut() { return cut_; }
  const LayerCut& cut() const { return cut_; }
  Style style() const { return cut_.style(); }
  /// The ranks that it computes with; nullptr until it is cut.
  const TensorRegionPtr& region() const { return cut_.region(); }

  /// The layouts of this layer's own parameters when it is cut by `style`. Throws MisuseError if
  /// the layer has no such cut. Every layer can be Whole, Positions and Inside.
  virtual Layouts layouts(Style style, Sequence sequence) const;

  /// The cuts of the output, for the prover.
  using Output = OutputCuts;
  virtual Output output() const;
  /// States them, for a layer whose style does not determine them.
  void set_output(Output output) { cut_.set_output(std::move(output)); }

 protected:
  /// The layer itself: one of the two.
  virtual at::Tensor compute(const at::Tensor& x, const Where* where);
  virtual Flow compute(const Flow& in);

  /// Does the backward of `compute` read the parameters?
  virtual bool backward_reads_weights() const { return true; }

  /// The cut of the output's features that the style causes, if it causes one.
  virtual std::optional<Cut> feature_cut() const { return std::nullopt; }

  /// Declares and registers a parameter. Its values come with `initialize`.
  at::Tensor parameter(const std::string& name, std::vector<int64_t> shape, InitRule init);
  /// Registers a parameter of another layer as one of this layer too: a tied weight.
  at::Tensor tied(const std::string& name, const at::Tensor& other);

  /// Runs a call other than `compute`, inside of the Unshard hooks only, so that it finds the
  /// weights in memory.
  Flow with_weights(Flow in, Call call);

 private:
  friend void name_layers(torch::nn::Module& root);

  std::list<std::pair<Seam, Hook>> hooks_;  // innermost first; graphs keep pointers to them
  DeclaredParameters declared_;
  LayerCut cut_;
  std::string full_name_;
  std::optional<at::ScalarType> compute_dtype_;
};

/// Tells every layer below `root` its full name. A layer that has a name keeps it.
void name_layers(torch::nn::Module& root);

/// Throws the error for a torch module that a plan wants to cut: the gradients of its parameters
/// would not follow a layout.
[[noreturn]] void throw_foreign(const std::string& layer, std::string_view style);

/// Makes a layer of any torch module. Its parameters keep their names, below the layer's.
template <class Holder>
std::shared_ptr<LayerImpl> as_layer(Holder module);

/// Layers one after the other; each gets the whole Flow of the one before.
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

  Layouts layouts(Style style, Sequence sequence) const override {
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
