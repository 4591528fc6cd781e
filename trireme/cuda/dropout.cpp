#include "trireme/cuda/dropout.h"

#include <algorithm>

#include "trireme/cuda/kernel.h"

namespace trireme::cuda {

void dropout_mask(const at::Tensor& mask, const at::Tensor& samples, uint64_t key,
                  const MaskElements& elements, uint32_t drop_below, double keep) {
  constexpr int64_t kThreads = 256;
  if (mask.numel() == 0) return;
  const int64_t rows = samples.numel();
  const int64_t groups = rows * elements.runs * (elements.run / 4 + 2);
  const int64_t blocks =
      std::min<int64_t>((groups + kThreads - 1) / kThreads, int64_t{64} * multiprocessors(mask));
  const Kernel kernel("dropout", "dropout_mask", {type_define(mask.scalar_type()), "PACK=1"}, mask);
  kernel({.grid = {static_cast<unsigned>(blocks), 1, 1},
          .block = {static_cast<unsigned>(kThreads), 1, 1}},
         mask.data_ptr(), samples.data_ptr(), static_cast<unsigned long long>(key), rows,
         elements.runs, elements.run, elements.first, elements.stride, drop_below,
         static_cast<float>(keep));
}

}  // namespace trireme::cuda
