#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::cuda {

/// A tensor whose squares are added up; its elements lie one after the other in memory.
struct Squared {
  at::Tensor tensor;  ///< float32 or 16 bits
  bool counts = true;
};

/// The sum of the squares of all elements of all tensors that count, one float64 number on the
/// device, by one pass over memory and in a fixed order. It is nan if a tensor that does not count
/// has an element that is not finite.
at::Tensor sum_of_squares(const std::vector<Squared>& tensors, c10::Device device);

}  // namespace trireme::cuda
