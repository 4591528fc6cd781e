#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "trireme/comm/communicator.h"

namespace trireme::nn {

/// The result of a collective that is in flight, so that something else can be computed meanwhile.
class TensorInFlight {
 public:
  TensorInFlight() = default;
  TensorInFlight(comm::Work work, std::function<at::Tensor()> result)
      : work_(std::move(work)), result_(std::move(result)) {}

  /// Waits for the collective and returns its result.
  at::Tensor wait() {
    work_.wait();
    return result_();
  }

 private:
  comm::Work work_;
  std::function<at::Tensor()> result_;
};

// Without autograd. A dim is cut by even_range: the first ranks may hold one more. Collective.

/// The sum over the group. It is written into the memory of `x` if `x` is contiguous.
TensorInFlight start_all_reduce(const at::Tensor& x, const comm::Communicator& group);
/// From this rank's part of `dim` to the whole dim, of this `size`.
TensorInFlight start_all_gather(const at::Tensor& x, int64_t dim, int64_t size,
                                const comm::Communicator& group);
/// From the whole of `dim` to this rank's part of the sum over the group.
TensorInFlight start_reduce_scatter(const at::Tensor& x, int64_t dim,
                                    const comm::Communicator& group);

}  // namespace trireme::nn

namespace trireme::nn::functional {

// Differentiable collectives. Each is named for what it does to the layout in forward; in backward
// it does the opposite. In a group of one rank each returns its argument.
//
// clang-format off
//              forward          backward
//   fan_out    nothing          all_reduce        one input, many shards of weight
//   fan_in     all_reduce       nothing           many partial sums, one output
//   gather     all_gather       reduce_scatter    shards -> whole, each rank uses it differently
//   scatter    reduce_scatter   all_gather        partial sums -> shards
//   join       all_gather       own part          shards -> whole, every rank uses it the same way
//   split      own part         all_gather        whole -> this rank's shard
// clang-format on
//
// `size` is the size of the whole dim; kEven means that all ranks hold as much as this one.
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
