#pragma once

#include <torch/nn/module.h>

#include <string>

namespace trireme::nn {

// A parameter stays the same tensor of the same shape as long as the model lives, because
// optimizers, hooks and graphs point at it. These functions replace only the memory behind it.

/// Makes a parameter share the memory of `home`, a tensor with the same number of elements. Whoever
/// points at the parameter (a graph that has saved it, a view) sees the new memory.
void bind(const at::Tensor& parameter, const at::Tensor& home);

/// Takes the memory away, and frees it if the parameter owned it. Reading the parameter is then an
/// error that says `why`.
void unbind(const at::Tensor& parameter, const std::string& why);

bool is_bound(const at::Tensor& parameter);

/// Throws if the parameter has no memory, with the reason if libtorch keeps it.
void check_bound(const at::Tensor& parameter, const std::string& name);

/// Does this libtorch throw wherever a parameter without memory is read? (2.13 does. With 2.11 our
/// layers throw when they are called without their weights, by `check_bound`; reading a parameter
/// outside of its layer is a segmentation fault.)
bool unbound_reads_throw();

/// A tensor without memory.
at::Tensor unbound(at::IntArrayRef shape, at::TensorOptions options, const std::string& why);

/// As long as one exists, the layers that this thread builds declare parameters without memory. So
/// a model can be built that fits no single rank; FullySharded then gives each rank its part.
class Deferred {
 public:
  Deferred();
  ~Deferred();
  Deferred(const Deferred&) = delete;
  Deferred& operator=(const Deferred&) = delete;
  static bool on();
};

/// Gives a parameter another dtype: its values are rounded, if it has memory.
void set_dtype(const at::Tensor& parameter, at::ScalarType dtype);

/// Module::to, for modules that may have parameters without memory.
void move_to(torch::nn::Module& module, at::ScalarType dtype, at::Device device);

}  // namespace trireme::nn
