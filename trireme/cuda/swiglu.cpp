#include "trireme/cuda/swiglu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "trireme/cuda/kernel.h"

namespace trireme::cuda {

namespace {

std::vector<std::string> swiglu_defines(const at::Tensor& z, int pack) {
  return {type_define(z.scalar_type()), fmt::format("PACK={}", pack),
          fmt::format("WIDTH={}", z.size(-1) / 2)};
}

}  // namespace

at::Tensor swiglu(const at::Tensor& z) {
  std::vector<int64_t> shape = z.sizes().vec();
  shape.back() /= 2;
  at::Tensor h = at::empty(shape, z.options());
  if (h.numel() == 0) return h;
  const int pack = pack_elems(z.scalar_type(), shape.back(), {z.data_ptr(), h.data_ptr()});
  const int64_t packs = h.numel() / pack;
  const Kernel kernel("swiglu", "swiglu_forward", swiglu_defines(z, pack), z);
  kernel(launch_over(packs, z), z.data_ptr(), h.data_ptr(), packs);
  return h;
}

at::Tensor swiglu_backward(const at::Tensor& dh, const at::Tensor& z) {
  at::Tensor dz = at::empty_like(z);
  if (dh.numel() == 0) return dz;
  const int pack =
      pack_elems(z.scalar_type(), z.size(-1) / 2, {z.data_ptr(), dh.data_ptr(), dz.data_ptr()});
  const int64_t packs = dh.numel() / pack;
  const Kernel kernel("swiglu", "swiglu_backward", swiglu_defines(z, pack), z);
  kernel(launch_over(packs, z), dh.data_ptr(), z.data_ptr(), dz.data_ptr(), packs);
  return dz;
}

}  // namespace trireme::cuda
