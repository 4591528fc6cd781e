#include "trireme/compress/factory.h"

#include "trireme/compress/compressors.h"
#include "trireme/core/error.h"

namespace trireme::compress {

std::unique_ptr<Compressor> make_compressor(const CompressorOptions& options) {
  const Kernels& kernels = kernels_named(options.cpu);
  switch (options.kind) {
    case Kind::Fp16: return make_fp16(kernels);
    case Kind::Bf16: return make_bf16(kernels);
    case Kind::Int8: return make_int8(kernels);
    case Kind::OneBit: return make_onebit(kernels);
    case Kind::TopK: return make_topk(kernels, options.ratio);
  }
  throw Error("make_compressor: no such kind");
}

}  // namespace trireme::compress
