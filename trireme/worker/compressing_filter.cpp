#include "trireme/worker/compressing_filter.h"

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <cstring>

#include "trireme/core/error.h"

namespace trireme::ps {

namespace {

at::Tensor tensor_of(std::span<const float> memory) {
  return at::from_blob(const_cast<float*>(memory.data()), {static_cast<int64_t>(memory.size())},
                       at::kFloat);
}

class CompressingFilter final : public Filter {
 public:
  CompressingFilter(std::shared_ptr<const compress::Compressor> compressor, uint64_t seed,
                    bool feedback)
      : compressor_(std::move(compressor)), seed_(seed), feedback_(feedback) {}

  std::string_view name() const override { return compressor_->name(); }

  size_t num_bytes(size_t elems) const override {
    return static_cast<size_t>(compressor_->num_bytes(static_cast<int64_t>(elems), at::kFloat));
  }

  std::string encode(std::span<const float> values, std::span<float> residual,
                     const FilterPlace& place) const override {
    const at::NoGradGuard guard;
    const compress::BlockPlace where{
        .seed = seed_, .stream = place.stream, .step = static_cast<int64_t>(place.step)};
    const at::Tensor block = tensor_of(values);
    const at::Tensor bytes =
        residual.empty() || !feedback_
            ? compressor_->encode(block, where)
            : compressor_->encode_with_feedback(block, tensor_of(residual), where);
    return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
  }

  void decode(std::string_view bytes, std::span<float> values) const override {
    const at::NoGradGuard guard;
    if (bytes.size() != num_bytes(values.size()))
      throw CommError(fmt::format("{} bytes are no {} values in {}", bytes.size(), values.size(),
                                  compressor_->name()));
    at::Tensor kept = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
    std::memcpy(kept.mutable_data_ptr(), bytes.data(), bytes.size());  // bytes may not be aligned
    compressor_->decode(kept, tensor_of(values));
  }

 private:
  std::shared_ptr<const compress::Compressor> compressor_;
  uint64_t seed_;
  bool feedback_;
};

}  // namespace

std::shared_ptr<const Filter> make_filter(std::shared_ptr<const compress::Compressor> compressor,
                                          uint64_t seed, bool feedback) {
  return std::make_shared<CompressingFilter>(std::move(compressor), seed, feedback);
}

}  // namespace trireme::ps
