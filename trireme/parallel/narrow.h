#pragma once

#include <memory>
#include <string_view>

#include "trireme/compress/compressor.h"

namespace trireme::parallel {

/// Tensors that travel in fewer bytes without a residual: activations between stages, and weights
/// when they are gathered. Only tensors of 32 bits and more do; others travel as they are.
///
/// int8 rounds at random. Where a rank would count steps, `encode` takes a hash of the values:
/// ranks that have the same values round them alike, and so does a rank that gathers a weight once
/// more in backward, or after it was resumed.
class Narrow {
 public:
  Narrow() = default;  ///< everything travels as it is
  explicit Narrow(std::shared_ptr<const compress::Compressor> compressor)
      : compressor_(std::move(compressor)) {}

  bool takes(at::ScalarType dtype) const {
    return compressor_ != nullptr && (dtype == at::kFloat || dtype == at::kDouble);
  }

  /// Of a tensor that it takes. `name` keeps tensors with the same values apart.
  at::Tensor encode(const at::Tensor& values, std::string_view name) const;
  void decode(const at::Tensor& bytes, const at::Tensor& values) const;
  int64_t num_bytes(int64_t elements, at::ScalarType dtype) const {
    return compressor_->num_bytes(elements, dtype);
  }

 private:
  std::shared_ptr<const compress::Compressor> compressor_;
};

}  // namespace trireme::parallel
