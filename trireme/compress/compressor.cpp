#include "trireme/compress/compressor.h"

#include <ATen/ops/empty_like.h>

namespace trireme::compress {

at::Tensor Compressor::encode_with_feedback(const at::Tensor& block, const at::Tensor& residual,
                                            const BlockPlace& place) const {
  residual.add_(block);
  at::Tensor bytes = encode(residual, place);
  const at::Tensor said = at::empty_like(residual);
  decode(bytes, said);
  residual.sub_(said);
  return bytes;
}

}  // namespace trireme::compress
