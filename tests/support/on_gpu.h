// For tests that need a GPU: they say so and are skipped where there is none.
#pragma once

#include <gtest/gtest.h>

#include <torch/cuda.h>
#include <torch/types.h>

#define NEEDS_GPU() \
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device, or a libtorch without CUDA"

namespace trireme::test {

inline at::TensorOptions gpu() {
  return at::TensorOptions().device(at::kCUDA, 0).dtype(at::kFloat);
}

}  // namespace trireme::test
