#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::nn {

/// Puts other memory behind a tensor. It keeps its TensorImpl, its shape and its place in every
/// graph; only the bytes change place. Returns the memory that was there.
at::DataPtr bind(const at::Tensor& tensor, at::DataPtr memory, std::size_t bytes);

/// Leaves the tensor without memory: whoever touches it before it is bound again gets an error.
at::DataPtr unbind(const at::Tensor& tensor);

/// Puts `tensor` behind `home`, a tensor of the same size and dtype: its values move there, and
/// both share the memory from now on.
void move_into(const at::Tensor& tensor, const at::Tensor& home);

}  // namespace trireme::nn
