#include "trireme/cuda/rotary.h"

#include <ATen/ops/empty.h>

#include "trireme/cuda/kernel.h"

namespace trireme::cuda {

namespace {

/// As in the kernel's text.
struct Strides {
  long long sample, head, position;
};
Strides strides_of(const at::Tensor& part) {
  return {part.stride(0), part.stride(1), part.stride(2)};
}

std::vector<std::string> rotary_defines(const RotaryHeads& heads, at::ScalarType dtype,
                                        int64_t head, int pack) {
  return {type_define(dtype),
          fmt::format("PACK={}", pack),
          fmt::format("HEAD={}", head),
          fmt::format("Q_HEADS={}", heads.q),
          fmt::format("KV_HEADS={}", heads.kv),
          fmt::format("NEIGHBOURS={}", heads.neighbours ? 1 : 0)};
}

bool aligned(const at::Tensor& part, int pack) {
  return part.stride(0) % pack == 0 && part.stride(1) % pack == 0 && part.stride(2) % pack == 0;
}

}  // namespace

void rotate(const at::Tensor& qkv, const RotaryHeads& heads) {
  const int64_t rows = qkv.size(0) * qkv.size(1), head = qkv.size(2) / (heads.q + 2 * heads.kv);
  if (rows == 0) return;
  const int pack = pack_elems(qkv.scalar_type(), head / 2, {qkv.data_ptr()});
  const Kernel kernel("rotary", "rotate_heads",
                      rotary_defines(heads, qkv.scalar_type(), head, pack), qkv);
  kernel(launch_over(rows * (heads.q + heads.kv) * (head / 2 / pack), qkv), qkv.data_ptr(),
         heads.cosines.data_ptr(), heads.sines.data_ptr(), rows, qkv.size(1));
}

at::Tensor unrotated_gradient(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv,
                              const RotaryHeads& heads) {
  const int64_t B = dq.size(0), T = dq.size(2), head = dq.size(3), rows = B * T;
  at::Tensor out = at::empty({B, T, (heads.q + 2 * heads.kv) * head}, dq.options());
  if (rows == 0) return out;
  int pack = pack_elems(dq.scalar_type(), head / 2,
                        {dq.data_ptr(), dk.data_ptr(), dv.data_ptr(), out.data_ptr()});
  if (!aligned(dq, pack) || !aligned(dk, pack) || !aligned(dv, pack)) pack = 1;
  const Kernel kernel("rotary", "join_gradients",
                      rotary_defines(heads, dq.scalar_type(), head, pack), dq);
  kernel(launch_over(rows * (heads.q + 2 * heads.kv) * (head / 2 / pack), dq), dq.data_ptr(),
         dk.data_ptr(), dv.data_ptr(), out.data_ptr(), heads.cosines.data_ptr(),
         heads.sines.data_ptr(), rows, T, strides_of(dq), strides_of(dk), strides_of(dv));
  return out;
}

}  // namespace trireme::cuda
