#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "trireme/comm/communicator.h"

namespace trireme::nn {

/// A collective over one dim of a tensor that is on its way: something else can be computed
/// meanwhile.
class Moving {
 public:
  Moving() = default;
  Moving(comm::Work work, std::function<at::Tensor()> result)
      : work_(std::move(work)), result_(std::move(result)) {}

  /// What it came to.
  at::Tensor wait() {
    work_.wait();
    return result_();
  }

 private:
  comm::Work work_;
  std::function<at::Tensor()> result_;
};

// Without autograd. Parts are cut by even_part: the first ranks may hold one more. Collective.

/// The sum over the group, in the memory of `x` where that is contiguous.
Moving start_all_reduce(const at::Tensor& x, const comm::Communicator& group);
/// This rank's part of `dim` in, the whole of `size` out.
Moving start_all_gather(const at::Tensor& x, int64_t dim, int64_t size,
                        const comm::Communicator& group);
/// The whole of `dim` in, this rank's part of the sum over the group out.
Moving start_reduce_scatter(const at::Tensor& x, int64_t dim, const comm::Communicator& group);

}  // namespace trireme::nn

namespace trireme::nn::functional {

// Collectives that autograd sees through. Each is named for what it does to the layout going
// forward; going backward it does the opposite. In a group of one each returns its argument.
//
// clang-format off
//              forward          backward
//   fan_out    nothing          all_reduce        one input, many shards of weight
//   fan_in     all_reduce       nothing           many partial sums, one output
//   gather     all_gather       reduce_scatter    shards -> whole, each rank uses it differently
//   scatter    reduce_scatter   all_gather        partial sums -> shards
//   join       all_gather       own part          shards -> whole, every rank uses it alike
//   split      own part         all_gather        whole -> this rank's shard
// clang-format on
//
// `size` is that of the whole dim; kEven: all ranks hold as much as this one.
constexpr int64_t kEven = -1;

at::Tensor fan_out(const at::Tensor& x, const comm::Communicator& group);
at::Tensor fan_in(const at::Tensor& x, const comm::Communicator& group);
at::Tensor gather(const at::Tensor& x, int64_t dim, const comm::Communicator& group,
                  int64_t size = kEven);
at::Tensor scatter(const at::Tensor& x, int64_t dim, const comm::Communicator& group);
at::Tensor join(const at::Tensor& x, int64_t dim, const comm::Communicator& group,
                int64_t size = kEven);
at::Tensor split(const at::Tensor& x, int64_t dim, const comm::Communicator& group);

}  // namespace trireme::nn::functional
