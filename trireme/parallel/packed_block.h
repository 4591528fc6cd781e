#pragma once

#include "trireme/parallel/residuals.h"

namespace trireme::parallel {

/// The gradients of a block that are compressed, one after the other in host memory.
///
///   block    | p0 | pad | p1 | kept | p2 |
///   packed   | p0 | p1 | p2 |                     all-reduce: rank r's slice is an even part
///            | p0.r0 p1.r0 | p0.r1 p1.r1 |        reduce-scatter: the rows that rank r gets
///
/// `ByMember` keeps each tensor in one part also where rows are scattered, for matrices.
class PackedBlock {
 public:
  enum class Order : uint8_t { ByRank, ByMember };
  struct Ranks {
    int mine, size;
  };
  PackedBlock(const GradientBlock& block, Ranks ranks, Order order);

  /// A copy of the gradients.
  at::Tensor gradients() const;
  /// Copies of what is kept of them, and back; undefined if nothing is.
  at::Tensor residuals(Residuals& from) const;
  void keep(Residuals& to, const at::Tensor& packed) const;
  /// Adds to what is kept of the elements from `begin` on.
  void keep_more(Residuals& to, const at::Tensor& part, int64_t begin) const;
  /// Writes the sum to where the block wants it. `packed` holds the elements from `begin` on.
  void put(const at::Tensor& packed, int64_t begin = 0) const;

  /// The number of elements, of all and of the slice of each rank.
  int64_t numel() const { return numel_; }
  const comm::Rows& slices() const { return slices_; }
  int64_t slice_begin(int rank) const;
  bool scatters() const { return scatters_; }
  at::ScalarType dtype() const { return dtype_; }
  /// The same on all ranks that sum the block, and different for every block.
  uint64_t name() const { return name_; }

  /// ByMember: where the tensors are, and whose they are.
  struct Part {
    GradientPlacePtr place;
    at::Tensor gradient;   // flat
    int64_t in_place = 0;  // its first element in its place
    int64_t begin = 0;     // in `packed`
    int64_t numel() const { return gradient.numel(); }
  };
  const std::vector<Part>& parts() const { return parts_; }

 private:
  struct Result {
    int64_t begin = 0;  // in `packed`
    at::Tensor to;
  };
  void add(const GradientPlacePtr& place, at::Tensor gradient, int64_t in_place);
  void add_rows(const GradientBlock& block, std::size_t i, int rank);

  std::vector<Part> parts_;
  std::vector<Result> results_;
  comm::Rows slices_;
  int64_t numel_ = 0;
  bool scatters_;
  at::ScalarType dtype_;
  uint64_t name_ = 0;
};

}  // namespace trireme::parallel
