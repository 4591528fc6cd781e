#include "trireme/compress/cpu_compressor.h"

#include <ATen/ops/empty.h>

#include <string>

#include "trireme/core/error.h"

namespace trireme::compress {

namespace {

void check_block(const at::Tensor& block, std::string_view compressor, std::string_view what) {
  const bool good = block.device().is_cpu() && block.dim() == 1 && block.is_contiguous() &&
                    (block.scalar_type() == at::kFloat || block.scalar_type() == at::kDouble);
  core::check(
      good,
      "{}: the {} must be float32 or float64, of one dim, contiguous and on the CPU, and is "
      "{} with {} dims on {}",
      compressor, what, c10::toString(block.scalar_type()), block.dim(), block.device().str());
}

char* memory_of(const at::Tensor& bytes) {
  return reinterpret_cast<char*>(bytes.data_ptr<uint8_t>());
}

}  // namespace

int64_t CpuCompressor::num_bytes(int64_t elements, at::ScalarType dtype) const {
  return size(elements, static_cast<int64_t>(c10::elementSize(dtype)));
}

at::Tensor CpuCompressor::encode(const at::Tensor& block, const BlockPlace& place) const {
  check_block(block, name(), "block");
  const int64_t count = block.numel();
  at::Tensor bytes = at::empty({num_bytes(count, block.scalar_type())}, at::kByte);
  if (block.scalar_type() == at::kFloat)
    encode_floats({block.data_ptr<float>(), nullptr, count}, place, memory_of(bytes));
  else
    encode_doubles(block.data_ptr<double>(), count, place, memory_of(bytes));
  return bytes;
}

void CpuCompressor::decode(const at::Tensor& bytes, const at::Tensor& block) const {
  check_block(block, name(), "block");
  const int64_t count = block.numel(), expected = num_bytes(count, block.scalar_type());
  core::check(bytes.scalar_type() == at::kByte && bytes.is_contiguous() &&
                  bytes.device().is_cpu() && bytes.numel() == expected,
              "{}: a block of {} elements needs {} contiguous bytes on the CPU, and there are {}",
              name(), count, expected, bytes.numel());
  if (block.scalar_type() == at::kFloat)
    decode_floats(memory_of(bytes), block.data_ptr<float>(), count);
  else
    decode_doubles(memory_of(bytes), block.data_ptr<double>(), count);
}

at::Tensor CpuCompressor::encode_with_feedback(const at::Tensor& block, const at::Tensor& residual,
                                               const BlockPlace& place) const {
  check_block(block, name(), "block");
  check_block(residual, name(), "residual");
  core::check(residual.numel() == block.numel() && residual.scalar_type() == block.scalar_type(),
              "{}: the residual has {} elements and the block {}, of the same dtype: {}", name(),
              residual.numel(), block.numel(), residual.scalar_type() == block.scalar_type());
  if (block.scalar_type() != at::kFloat)
    return Compressor::encode_with_feedback(block, residual, place);
  at::Tensor bytes = at::empty({num_bytes(block.numel(), at::kFloat)}, at::kByte);
  encode_floats({block.data_ptr<float>(), residual.data_ptr<float>(), block.numel()}, place,
                memory_of(bytes));
  return bytes;
}

}  // namespace trireme::compress
