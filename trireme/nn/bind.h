#pragma once

#include <torch/nn/module.h>

#include <string>

namespace trireme::nn {

// A parameter keeps its identity and its shape for ever: optimizers, hooks and graphs point at it.
// Only the memory of its storage comes and goes.

/// Gives a parameter the memory of `home`, a tensor of as many elements, which both share from now
/// on. What points at the parameter (a graph that has saved it, a view) sees the new memory.
void bind(const at::Tensor& parameter, const at::Tensor& home);

/// Takes the memory away, and frees it where the parameter owned it. Whoever reads it now gets an
/// error that says `why`.
void unbind(const at::Tensor& parameter, const std::string& why);

bool is_bound(const at::Tensor& parameter);

/// Throws, with the reason where libtorch keeps it, unless the parameter has memory.
void check_bound(const at::Tensor& parameter, const std::string& name);

/// Does this libtorch make an error of reading a parameter without memory anywhere? (2.13 does.
/// With 2.11 a layer of ours that is called without its weights is an error, by `check_bound`;
/// reading one outside of its layer is a segmentation fault.)
bool unbound_reads_throw();

/// A tensor without memory.
at::Tensor unbound(at::IntArrayRef shape, at::TensorOptions options, const std::string& why);

/// While one lives, layers that this thread builds declare their parameters without memory: a model
/// that no rank could hold can be built, and FullySharded gives each rank its own part.
class Deferred {
 public:
  Deferred();
  ~Deferred();
  Deferred(const Deferred&) = delete;
  Deferred& operator=(const Deferred&) = delete;
  static bool on();
};

/// Module::to for modules that may have parameters without memory.
void move_to(torch::nn::Module& module, at::ScalarType dtype, at::Device device);

}  // namespace trireme::nn
