#include "trireme/nn/collectives.h"

#include <torch/autograd.h>

#include "trireme/core/error.h"
#include "trireme/layout/even_part.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

comm::Rows parts_of(int64_t size, const comm::Communicator& group) {
  comm::Rows rows;
  for (int rank = 0; rank < group.size(); ++rank)
    rows.push_back(even_part(size, group.size(), rank).count);
  return rows;
}

/// A tensor around the dim that is cut: [outer, dim, inner].
struct Around {
  Around(const at::Tensor& x, int64_t dim) {
    for (int64_t d = 0; d < dim; ++d) outer *= x.size(d);
    for (int64_t d = dim + 1; d < x.dim(); ++d) inner *= x.size(d);
  }
  int64_t outer = 1, inner = 1;
};

/// Communicators cut along dim 0. Long rows go one by one, where they lie; short ones are packed
/// first, because each operation costs a few microseconds.
constexpr int64_t kLongRowBytes = 64 << 10;

using Pairs = std::function<comm::Work(std::vector<at::Tensor> out, std::vector<at::Tensor> in,
                                       std::vector<comm::Rows> rows)>;

/// Runs `start` on the parts of `in` and of an `out` whose dim has `out_size`.
Moving move_along(const at::Tensor& x, int64_t dim, int64_t out_size, int64_t whole_size,
                  const comm::Communicator& group, const Pairs& start) {
  const Around around(x, dim);
  const at::Tensor in = x.contiguous();
  std::vector<int64_t> shape = in.sizes().vec();
  shape[static_cast<std::size_t>(dim)] = out_size;
  const comm::Rows rows = parts_of(whole_size, group);
  const int64_t in_size = in.size(dim);
  if (around.outer * whole_size * around.inner == 0) {  // on every rank alike
    const at::Tensor nothing = at::empty(shape, in.options());
    return {comm::Work(), [nothing] { return nothing; }};
  }
  const int64_t row_bytes =
      whole_size * around.inner * static_cast<int64_t>(in.element_size()) / group.size();
  if (around.outer == 1 || row_bytes >= kLongRowBytes) {
    const at::Tensor out = at::empty(shape, in.options());
    const at::Tensor from = in.view({around.outer, in_size, around.inner});
    const at::Tensor to = out.view({around.outer, out_size, around.inner});
    std::vector<at::Tensor> outs, ins;
    for (int64_t row = 0; row < around.outer; ++row) {
      outs.push_back(to[row]);
      ins.push_back(from[row]);
    }
    std::vector<comm::Rows> all(static_cast<std::size_t>(around.outer), rows);
    return {start(std::move(outs), std::move(ins), std::move(all)), [out] { return out; }};
  }
  const at::Tensor packed =
      in.view({around.outer, in_size, around.inner}).transpose(0, 1).contiguous();
  const at::Tensor out = at::empty({out_size, around.outer, around.inner}, in.options());
  return {start({out}, {packed}, {rows}),
          [shape, out] { return out.transpose(0, 1).reshape(shape).contiguous(); }};
}

int64_t wrapped(const at::Tensor& x, int64_t dim) {
  core::check(dim >= -x.dim() && dim < x.dim(), "a tensor of {} dims has no dim {}", x.dim(), dim);
  return dim < 0 ? dim + x.dim() : dim;
}

at::Tensor own_part(const at::Tensor& x, int64_t dim, const comm::Communicator& group) {
  const Part part = even_part(x.size(dim), group.size(), group.rank());
  return x.narrow(dim, part.begin, part.count).contiguous();
}

/// The group, carried by the graph.
struct Place : torch::CustomClassHolder {
  Place(comm::Communicator in, int64_t of, int64_t whole)
      : group(std::move(in)), dim(of), size(whole) {}
  comm::Communicator group;
  int64_t dim, size;
};
using PlacePtr = c10::intrusive_ptr<Place>;

enum class Kind : uint8_t { FanOut, FanIn, Gather, Scatter, Join, Split };

at::Tensor forward_of(Kind kind, const at::Tensor& x, const Place& at) {
  switch (kind) {
    case Kind::FanOut: return x.view_as(x);
    case Kind::FanIn: return start_all_reduce(x.clone(), at.group).wait();
    case Kind::Gather:
    case Kind::Join: return start_all_gather(x, at.dim, at.size, at.group).wait();
    case Kind::Scatter: return start_reduce_scatter(x, at.dim, at.group).wait();
    case Kind::Split: return own_part(x, at.dim, at.group);
  }
  return {};
}

/// What takes a gradient back: what one does going forward, the other does going backward.
constexpr Kind opposite(Kind kind) {
  switch (kind) {
    case Kind::FanOut: return Kind::FanIn;
    case Kind::FanIn: return Kind::FanOut;
    case Kind::Gather: return Kind::Scatter;
    case Kind::Scatter: return Kind::Gather;
    case Kind::Join: return Kind::Split;
    case Kind::Split: return Kind::Join;
  }
  return kind;
}

template <Kind kKind>
struct Through : ag::Function<Through<kKind>> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x, PlacePtr at) {
    context->saved_data["at"] = c10::IValue::make_capsule(at);
    return forward_of(kKind, x, *at);
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const auto at =
        c10::static_intrusive_pointer_cast<Place>(context->saved_data["at"].toCapsule());
    return {Through<opposite(kKind)>::apply(gradients[0], at), {}};
  }
};

template <Kind kKind>
at::Tensor apply(const at::Tensor& x, const comm::Communicator& group, int64_t dim = 0,
                 int64_t size = 0) {
  if (group.size() == 1) return x;
  return Through<kKind>::apply(x, c10::make_intrusive<Place>(group, dim, size));
}

int64_t whole_size(const at::Tensor& x, int64_t dim, const comm::Communicator& group,
                   int64_t size) {
  if (size == functional::kEven) return x.size(dim) * group.size();
  const int64_t mine = even_part(size, group.size(), group.rank()).count;
  core::check(x.size(dim) == mine, "dim {} of {} over {} ranks: rank {} holds {} of it, not {}",
              dim, size, group.size(), group.rank(), mine, x.size(dim));
  return size;
}

}  // namespace

Moving start_all_reduce(const at::Tensor& x, const comm::Communicator& group) {
  at::Tensor sum = x.contiguous();
  if (sum.numel() == 0) return {comm::Work(), [sum] { return sum; }};
  return {group.all_reduce(sum), [sum] { return sum; }};
}

Moving start_all_gather(const at::Tensor& x, int64_t dim, int64_t size,
                        const comm::Communicator& group) {
  return move_along(
      x, dim, size, size, group,
      [&](std::vector<at::Tensor> out, std::vector<at::Tensor> in, std::vector<comm::Rows> rows) {
        return group.all_gather(std::move(out), std::move(in), std::move(rows));
      });
}

Moving start_reduce_scatter(const at::Tensor& x, int64_t dim, const comm::Communicator& group) {
  const int64_t size = x.size(dim);
  return move_along(
      x, dim, even_part(size, group.size(), group.rank()).count, size, group,
      [&](std::vector<at::Tensor> out, std::vector<at::Tensor> in, std::vector<comm::Rows> rows) {
        return group.reduce_scatter(std::move(out), std::move(in), comm::ReduceOp::Sum,
                                    std::move(rows));
      });
}

namespace functional {

at::Tensor fan_out(const at::Tensor& x, const comm::Communicator& group) {
  return apply<Kind::FanOut>(x, group);
}

at::Tensor fan_in(const at::Tensor& x, const comm::Communicator& group) {
  return apply<Kind::FanIn>(x, group);
}

at::Tensor gather(const at::Tensor& x, int64_t dim, const comm::Communicator& group, int64_t size) {
  dim = wrapped(x, dim);
  return apply<Kind::Gather>(x, group, dim, whole_size(x, dim, group, size));
}

at::Tensor scatter(const at::Tensor& x, int64_t dim, const comm::Communicator& group) {
  dim = wrapped(x, dim);
  return apply<Kind::Scatter>(x, group, dim, x.size(dim));
}

at::Tensor join(const at::Tensor& x, int64_t dim, const comm::Communicator& group, int64_t size) {
  dim = wrapped(x, dim);
  return apply<Kind::Join>(x, group, dim, whole_size(x, dim, group, size));
}

at::Tensor split(const at::Tensor& x, int64_t dim, const comm::Communicator& group) {
  dim = wrapped(x, dim);
  return apply<Kind::Split>(x, group, dim, x.size(dim));
}

}  // namespace functional

}  // namespace trireme::nn
