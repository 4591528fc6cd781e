#include "trireme/nn/collectives.h"

#include <torch/autograd.h>

#include "trireme/core/error.h"
#include "trireme/layout/even_range.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

comm::Rows parts_of(int64_t size, const comm::Communicator& group) {
  comm::Rows rows;
  for (int rank = 0; rank < group.size(); ++rank)
    rows.push_back(even_range(size, group.size(), rank).count);
  return rows;
}

/// A tensor seen as [outer, dim, inner], where `dim` is the one that is cut.
struct OuterInner {
  OuterInner(const at::Tensor& x, int64_t dim) {
    for (int64_t d = 0; d < dim; ++d) outer *= x.size(d);
    for (int64_t d = dim + 1; d < x.dim(); ++d) inner *= x.size(d);
  }
  int64_t outer = 1, inner = 1;
};

/// Communicators cut along dim 0, but here the dim lies inside of `outer` rows. Rows of at least
/// this size are sent one by one from where they are. Shorter ones are first packed as
/// [dim, outer, inner], because each operation costs a few microseconds.
constexpr int64_t kLongRowBytes = 64 << 10;

using StartCollective = std::function<comm::Work(
    std::vector<at::Tensor> out, std::vector<at::Tensor> in, std::vector<comm::Rows> rows)>;

/// Runs `start` from `x` to a tensor that has `out_size` in `dim`, where `whole_size` is the size
/// of the dim over all ranks.
TensorInFlight move_along(const at::Tensor& x, int64_t dim, int64_t out_size, int64_t whole_size,
                          const comm::Communicator& group, const StartCollective& start) {
  const OuterInner sizes(x, dim);
  const at::Tensor in = x.contiguous();
  std::vector<int64_t> shape = in.sizes().vec();
  shape[static_cast<std::size_t>(dim)] = out_size;
  const comm::Rows rows = parts_of(whole_size, group);
  const int64_t in_size = in.size(dim);
  if (sizes.outer * whole_size * sizes.inner == 0) {  // the same on every rank
    const at::Tensor nothing = at::empty(shape, in.options());
    return {comm::Work(), [nothing] { return nothing; }};
  }
  const int64_t row_bytes =
      whole_size * sizes.inner * static_cast<int64_t>(in.element_size()) / group.size();
  if (sizes.outer == 1 || row_bytes >= kLongRowBytes) {
    const at::Tensor out = at::empty(shape, in.options());
    const at::Tensor from = in.view({sizes.outer, in_size, sizes.inner});
    const at::Tensor to = out.view({sizes.outer, out_size, sizes.inner});
    std::vector<at::Tensor> outs, ins;
    for (int64_t row = 0; row < sizes.outer; ++row) {
      outs.push_back(to[row]);
      ins.push_back(from[row]);
    }
    std::vector<comm::Rows> all(static_cast<std::size_t>(sizes.outer), rows);
    return {start(std::move(outs), std::move(ins), std::move(all)), [out] { return out; }};
  }
  const at::Tensor packed =
      in.view({sizes.outer, in_size, sizes.inner}).transpose(0, 1).contiguous();
  const at::Tensor out = at::empty({out_size, sizes.outer, sizes.inner}, in.options());
  return {start({out}, {packed}, {rows}),
          [shape, out] { return out.transpose(0, 1).reshape(shape).contiguous(); }};
}

int64_t wrapped(const at::Tensor& x, int64_t dim) {
  core::check(dim >= -x.dim() && dim < x.dim(), "a tensor of {} dims has no dim {}", x.dim(), dim);
  return dim < 0 ? dim + x.dim() : dim;
}

at::Tensor own_part(const at::Tensor& x, int64_t dim, const comm::Communicator& group) {
  const Range part = even_range(x.size(dim), group.size(), group.rank());
  return x.narrow(dim, part.begin, part.count).contiguous();
}

/// The arguments of a collective besides its tensor, as the autograd graph keeps them.
struct CollectiveArgs : torch::CustomClassHolder {
  CollectiveArgs(comm::Communicator over, int64_t along, int64_t whole)
      : group(std::move(over)), dim(along), size(whole) {}
  comm::Communicator group;
  int64_t dim, size;  // the dim that is cut, and its size over all ranks
};
using CollectiveArgsPtr = c10::intrusive_ptr<CollectiveArgs>;

enum class CollectiveKind : uint8_t { FanOut, FanIn, Gather, Scatter, Join, Split };

at::Tensor run_collective(CollectiveKind kind, const at::Tensor& x, const CollectiveArgs& args) {
  switch (kind) {
    case CollectiveKind::FanOut: return x.view_as(x);
    case CollectiveKind::FanIn: return start_all_reduce(x.clone(), args.group).wait();
    case CollectiveKind::Gather:
    case CollectiveKind::Join: return start_all_gather(x, args.dim, args.size, args.group).wait();
    case CollectiveKind::Scatter: return start_reduce_scatter(x, args.dim, args.group).wait();
    case CollectiveKind::Split: return own_part(x, args.dim, args.group);
  }
  return {};
}

/// The collective that carries the gradient back.
constexpr CollectiveKind opposite(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::FanOut: return CollectiveKind::FanIn;
    case CollectiveKind::FanIn: return CollectiveKind::FanOut;
    case CollectiveKind::Gather: return CollectiveKind::Scatter;
    case CollectiveKind::Scatter: return CollectiveKind::Gather;
    case CollectiveKind::Join: return CollectiveKind::Split;
    case CollectiveKind::Split: return CollectiveKind::Join;
  }
  return kind;
}

template <CollectiveKind kKind>
struct CollectiveFunction : ag::Function<CollectiveFunction<kKind>> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x,
                            CollectiveArgsPtr args) {
    context->saved_data["args"] = c10::IValue::make_capsule(args);
    return run_collective(kKind, x, *args);
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const auto args =
        c10::static_intrusive_pointer_cast<CollectiveArgs>(context->saved_data["args"].toCapsule());
    return {CollectiveFunction<opposite(kKind)>::apply(gradients[0], args), {}};
  }
};

template <CollectiveKind kKind>
at::Tensor apply(const at::Tensor& x, const comm::Communicator& group, int64_t dim = 0,
                 int64_t size = 0) {
  if (group.size() == 1) return x;
  return CollectiveFunction<kKind>::apply(x, c10::make_intrusive<CollectiveArgs>(group, dim, size));
}

int64_t whole_size(const at::Tensor& x, int64_t dim, const comm::Communicator& group,
                   int64_t size) {
  if (size == functional::kEven) return x.size(dim) * group.size();
  const int64_t mine = even_range(size, group.size(), group.rank()).count;
  core::check(x.size(dim) == mine, "dim {} of {} over {} ranks: rank {} holds {} of it, not {}",
              dim, size, group.size(), group.rank(), mine, x.size(dim));
  return size;
}

/// For collectives that make the whole from the ranks' parts: `size` is that of the whole.
template <CollectiveKind kKind>
at::Tensor apply_to_parts(const at::Tensor& x, int64_t dim, const comm::Communicator& group,
                          int64_t size) {
  dim = wrapped(x, dim);
  return apply<kKind>(x, group, dim, whole_size(x, dim, group, size));
}

/// For collectives that cut the whole into a part for each rank.
template <CollectiveKind kKind>
at::Tensor apply_to_whole(const at::Tensor& x, int64_t dim, const comm::Communicator& group) {
  dim = wrapped(x, dim);
  return apply<kKind>(x, group, dim, x.size(dim));
}

}  // namespace

TensorInFlight start_all_reduce(const at::Tensor& x, const comm::Communicator& group) {
  at::Tensor sum = x.contiguous();
  if (sum.numel() == 0) return {comm::Work(), [sum] { return sum; }};
  return {group.all_reduce(sum), [sum] { return sum; }};
}

TensorInFlight start_all_gather(const at::Tensor& x, int64_t dim, int64_t size,
                                const comm::Communicator& group) {
  return move_along(
      x, dim, size, size, group,
      [&](std::vector<at::Tensor> out, std::vector<at::Tensor> in, std::vector<comm::Rows> rows) {
        return group.all_gather(std::move(out), std::move(in), std::move(rows));
      });
}

TensorInFlight start_reduce_scatter(const at::Tensor& x, int64_t dim,
                                    const comm::Communicator& group) {
  const int64_t size = x.size(dim);
  return move_along(
      x, dim, even_range(size, group.size(), group.rank()).count, size, group,
      [&](std::vector<at::Tensor> out, std::vector<at::Tensor> in, std::vector<comm::Rows> rows) {
        return group.reduce_scatter(std::move(out), std::move(in), comm::ReduceOp::Sum,
                                    std::move(rows));
      });
}

namespace functional {

at::Tensor fan_out(const at::Tensor& x, const comm::Communicator& group) {
  return apply<CollectiveKind::FanOut>(x, group);
}

at::Tensor fan_in(const at::Tensor& x, const comm::Communicator& group) {
  return apply<CollectiveKind::FanIn>(x, group);
}

at::Tensor gather(const at::Tensor& x, int64_t dim, const comm::Communicator& group, int64_t size) {
  return apply_to_parts<CollectiveKind::Gather>(x, dim, group, size);
}

at::Tensor scatter(const at::Tensor& x, int64_t dim, const comm::Communicator& group) {
  return apply_to_whole<CollectiveKind::Scatter>(x, dim, group);
}

at::Tensor join(const at::Tensor& x, int64_t dim, const comm::Communicator& group, int64_t size) {
  return apply_to_parts<CollectiveKind::Join>(x, dim, group, size);
}

at::Tensor split(const at::Tensor& x, int64_t dim, const comm::Communicator& group) {
  return apply_to_whole<CollectiveKind::Split>(x, dim, group);
}

}  // namespace functional

}  // namespace trireme::nn
