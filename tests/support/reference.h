#pragma once

#include <gtest/gtest.h>

#include <torch/torch.h>

#include <string>
#include <vector>

#include "support/sentence.h"
#include "trireme/comm/communicator.h"
#include "trireme/core/op_info.h"

namespace trireme::test {

/// The dtypes that can be reduced.
extern const std::vector<at::ScalarType> kDTypes;
extern const std::vector<core::ReduceOp> kReduceOps;

/// Every rank's data of a sweep, known to every rank: drawn once, the same in every process, and
/// different for every rank and index.
class Draws {
 public:
  Draws(int ranks, int64_t longest, uint64_t seed = 7);

  /// Numbers with all their bits in use; uint8 over its whole range.
  at::Tensor of(int rank, int64_t count, at::ScalarType dtype) const;
  std::vector<at::Tensor> of_all(int64_t count, at::ScalarType dtype) const;

  /// Small whole numbers: their sums are exact whatever the order, in every dtype.
  at::Tensor whole(int rank, int64_t count, at::ScalarType dtype) const;
  std::vector<at::Tensor> wholes(int64_t count, at::ScalarType dtype) const;

 private:
  std::vector<at::Tensor> reals_;
};

/// What the data of rank 0, 1, 2, ... must become: combined in that order; 16-bit floats in float32
/// and rounded once; integers wrap, but not before a mean, which truncates toward zero.
at::Tensor reduced(const std::vector<at::Tensor>& data, core::ReduceOp op);

/// Element i of rank r's tensor is r * 1000 + i (modulo 251 for uint8): a chunk in the wrong place
/// shows.
at::Tensor marked(int rank, at::IntArrayRef shape, at::ScalarType dtype = at::kFloat);

/// Shape, dtype and every bit.
::testing::AssertionResult same_bits(const at::Tensor& got, const at::Tensor& expected);

/// The result of a reduction: the same bits; over NCCL, which adds in its own order and has its own
/// rules for the mean of integers, near enough for the dtype.
::testing::AssertionResult same_sum(const comm::Communicator& world, const at::Tensor& got,
                                    const at::Tensor& expected, core::ReduceOp op);

/// Every rank of the group passes a tensor; true if all are the same, bit for bit. Collective.
::testing::AssertionResult same_everywhere(const comm::Communicator& group, const at::Tensor& mine);

}  // namespace trireme::test
