#include "trireme/compress/compressor.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

namespace trireme::compress {

int64_t Compressor::num_bytes(int64_t elements, at::ScalarType dtype) const {
  return encode(at::zeros({elements}, dtype), {}).numel();
}

at::Tensor Compressor::encode_with_feedback(const at::Tensor& block, const at::Tensor& residual,
                                            const BlockPlace& place) const {
  residual.add_(block);
  at::Tensor bytes = encode(residual, place);
  const at::Tensor said = at::empty_like(residual);
  decode(bytes, said);
  residual.sub_(said).nan_to_num_(0, 0, 0);
  return bytes;
}

}  // namespace trireme::compress
