#pragma once

#include "trireme/compress/compressor.h"
#include "trireme/compress/kernels.h"

namespace trireme::compress {

/// A compressor whose loops see plain memory: checks the tensors and picks the loop for the dtype.
/// float32 has a loop that encodes with feedback in one go; float64 takes the steps of Compressor.
class CpuCompressor : public Compressor {
 public:
  int64_t num_bytes(int64_t elements, at::ScalarType dtype) const final;
  at::Tensor encode(const at::Tensor& block, const BlockPlace& place) const final;
  void decode(const at::Tensor& bytes, const at::Tensor& block) const final;
  at::Tensor encode_with_feedback(const at::Tensor& block, const at::Tensor& residual,
                                  const BlockPlace& place) const final;

 protected:
  explicit CpuCompressor(const Kernels& kernels) : kernels_(kernels) {}

  /// The bytes of `count` elements of `item_bytes` bytes.
  virtual int64_t size(int64_t count, int64_t item_bytes) const = 0;
  virtual void encode_floats(const Source& source, const BlockPlace& place, char* bytes) const = 0;
  virtual void decode_floats(const char* bytes, float* block, int64_t count) const = 0;
  virtual void encode_doubles(const double* block, int64_t count, const BlockPlace& place,
                              char* bytes) const = 0;
  virtual void decode_doubles(const char* bytes, double* block, int64_t count) const = 0;

  const Kernels& kernels_;
};

}  // namespace trireme::compress
