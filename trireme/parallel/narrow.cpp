#include "trireme/parallel/narrow.h"

#include "trireme/core/hash.h"

namespace trireme::parallel {

at::Tensor Narrow::encode(const at::Tensor& values, std::string_view name) const {
  const at::Tensor flat = values.detach().contiguous().view({-1});
  const uint64_t hash = core::hash64(flat.data_ptr(), flat.nbytes());
  return compressor_->encode(flat,
                             {.stream = core::hash64(name), .step = static_cast<int64_t>(hash)});
}

void Narrow::decode(const at::Tensor& bytes, const at::Tensor& values) const {
  compressor_->decode(bytes, values.view({-1}));
}

}  // namespace trireme::parallel
