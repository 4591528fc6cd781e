#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

/// A block of a tensor, in the whole tensor's coordinates.
struct Box {
  std::vector<int64_t> offset, shape;

  int64_t numel() const {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return count;
  }
  bool operator==(const Box&) const = default;
};

/// A box of the tensor `name`, or elements [begin, begin + count) of that box in row-major order.
struct Piece {
  std::string name;
  std::vector<int64_t> whole, offset, shape;
  int64_t begin = 0, count = 0;

  bool operator==(const Piece&) const = default;
};

}  // namespace trireme
