#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::cuda {

/// Which elements of its sample each row of a mask has: `runs` runs of `run` elements, the first of
/// which begins at `first`, each `stride` after the one before.
struct MaskElements {
  int64_t runs = 0, run = 0, first = 0, stride = 0;
};

/// Fills a dropout mask [rows, runs, run] on the GPU with the numbers that the CPU would draw.
/// `samples`: the id of each row's sample, int64 on the GPU.
void dropout_mask(const at::Tensor& mask, const at::Tensor& samples, uint64_t key,
                  const MaskElements& elements, uint32_t drop_below, double keep);

}  // namespace trireme::cuda
