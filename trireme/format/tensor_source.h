#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/layout/piece.h"

namespace trireme::format {

/// Named tensors of which any piece can be read, whatever the files that hold them look like.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;  ///< of the whole
  };
  /// Nothing if there is no such tensor.
  virtual std::optional<Tensor> tensor(const std::string& name) const = 0;
  /// Fills `to` with the piece's elements, in row-major order. Throws ConfigError where the name,
  /// the shape of the whole or the dtype is not that of `tensor`.
  virtual void read(const Piece& wanted, std::string_view dtype, void* to) = 0;
};

}  // namespace trireme::format
