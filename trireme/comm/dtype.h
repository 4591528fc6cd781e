#pragma once

#include <c10/core/ScalarType.h>

#include "trireme/core/op_info.h"

namespace trireme::comm {

/// libtorch's dtype as the layers without libtorch call it.
constexpr core::DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return core::DType::Float32;
    case at::kDouble: return core::DType::Float64;
    case at::kHalf: return core::DType::Float16;
    case at::kBFloat16: return core::DType::BFloat16;
    case at::kInt: return core::DType::Int32;
    case at::kLong: return core::DType::Int64;
    case at::kByte: return core::DType::UInt8;
    default: return core::DType::Other;
  }
}

/// The other way round, for the dtypes that parameters have.
constexpr at::ScalarType scalar_type_of(core::DType dtype) {
  switch (dtype) {
    case core::DType::Float64: return at::kDouble;
    case core::DType::Float16: return at::kHalf;
    case core::DType::BFloat16: return at::kBFloat16;
    default: return at::kFloat;
  }
}

/// Does a dtype have 16 bits?
constexpr bool is_half(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16;
}

}  // namespace trireme::comm
