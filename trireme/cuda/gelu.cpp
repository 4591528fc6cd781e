#include "trireme/cuda/gelu.h"

#include <ATen/ops/empty_like.h>

#include "trireme/cuda/kernel.h"

namespace trireme::cuda {

at::Tensor gelu(const at::Tensor& x) {
  at::Tensor y = at::empty_like(x);
  if (x.numel() == 0) return y;
  const int pack = pack_elems(x.scalar_type(), x.numel(), {x.data_ptr(), y.data_ptr()});
  const int64_t packs = x.numel() / pack;
  const Kernel kernel("gelu", "gelu_forward",
                      {type_define(x.scalar_type()), fmt::format("PACK={}", pack)}, x);
  kernel(launch_over(packs, x), x.data_ptr(), y.data_ptr(), packs);
  return y;
}

at::Tensor gelu_backward(const at::Tensor& dy, const at::Tensor& x) {
  at::Tensor dx = at::empty_like(x);
  if (x.numel() == 0) return dx;
  const int pack =
      pack_elems(x.scalar_type(), x.numel(), {x.data_ptr(), dy.data_ptr(), dx.data_ptr()});
  const int64_t packs = x.numel() / pack;
  const Kernel kernel("gelu", "gelu_backward",
                      {type_define(x.scalar_type()), fmt::format("PACK={}", pack)}, x);
  kernel(launch_over(packs, x), dy.data_ptr(), x.data_ptr(), dx.data_ptr(), packs);
  return dx;
}

}  // namespace trireme::cuda
