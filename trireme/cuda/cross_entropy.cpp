#include "trireme/cuda/cross_entropy.h"

#include <ATen/ops/empty.h>

#include "trireme/cuda/kernel.h"

namespace trireme::cuda {

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, int64_t ignored,
                         bool gradient, const at::Tensor& scale) {
  const int64_t rows = logits.size(0), width = logits.size(1);
  at::Tensor losses = at::empty({rows}, logits.options().dtype(at::kFloat));
  if (rows == 0) return losses;
  const int pack = pack_elems(logits.scalar_type(), width, {logits.data_ptr()});
  const int64_t row_bytes = width * static_cast<int64_t>(logits.element_size());
  const bool keep = row_bytes <= shared_bytes(logits) - 2048;
  const Kernel kernel("cross_entropy", "cross_entropy",
                      {type_define(logits.scalar_type()), fmt::format("PACK={}", pack),
                       fmt::format("KEEP={}", keep ? 1 : 0)},
                      logits);
  const unsigned threads = width >= 16384 ? 1024 : 256;
  kernel({.grid = {static_cast<unsigned>(rows), 1, 1},
          .block = {threads, 1, 1},
          .shared_bytes = keep ? static_cast<unsigned>((row_bytes + 15) / 16 * 16) : 0},
         logits.data_ptr(), targets.data_ptr(), losses.data_ptr(),
         scale.defined() ? scale.data_ptr() : nullptr, width, ignored, gradient ? 1 : 0);
  return losses;
}

}  // namespace trireme::cuda
