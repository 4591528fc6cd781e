#include "trireme/comm/op.h"

#include <numeric>
#include <sstream>

#include "trireme/comm/dtype.h"
#include "trireme/comm/program.h"

namespace trireme::comm {

namespace {

using core::DType;
using core::OpInfo;
using core::OpKind;

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};

DType dtype_of(const at::Tensor& t) {
  return comm::dtype_of(t.scalar_type());
}

/// Who called which operation. Every error begins with it: "all_reduce, rank 1 of 4: ".
struct Caller {
  OpKind kind;
  int rank, size;
  friend std::ostream& operator<<(std::ostream& out, const Caller& caller) {
    return out << core::to_string(caller.kind) << ", rank " << caller.rank << " of " << caller.size
               << ": ";
  }
};

void check_tensor(const Caller& caller, const at::Tensor& t, const char* name) {
  TORCH_CHECK(t.defined(), caller, name, " is an undefined tensor");
  TORCH_CHECK(t.layout() == at::kStrided, caller, name, " is not a dense tensor; use .to_dense()");
  TORCH_CHECK(t.is_contiguous(), caller, name, " of shape ", t.sizes(), " and strides ",
              t.strides(), " is not contiguous; pass .contiguous() and copy the result back");
}

void check_reduces(const Caller& caller, const at::Tensor& t) {
  TORCH_CHECK(dtype_of(t) != DType::Other, caller, "cannot reduce ", t.scalar_type(),
              "; it must be float32, float64, float16, bfloat16, int32, int64 or uint8");
}

void check_rank(const Caller& caller, int rank, const char* name) {
  TORCH_CHECK(rank >= 0 && rank < caller.size, caller, name, " ", rank,
              " is not a rank of this group of ", caller.size);
}

/// Returns the rows of each rank. Given rows must add up to those of the whole; without them the
/// ranks share the whole evenly.
Rows full_rows(const Caller& caller, const Rows& rows, const at::Tensor& whole, const char* name) {
  TORCH_CHECK(whole.dim() > 0, caller, name, " has no dim 0 to be cut along; pass .unsqueeze(0)");
  const int64_t total = whole.size(0);
  if (rows.empty()) {
    TORCH_CHECK(total % caller.size == 0, caller, name, " has ", total, " rows, which ",
                caller.size,
                " ranks cannot share evenly; pass `rows` to say how many each rank has");
    return Rows(static_cast<std::size_t>(caller.size), total / caller.size);
  }
  TORCH_CHECK(static_cast<int>(rows.size()) == caller.size, caller, "rows has ", rows.size(),
              " entries for ", caller.size, " ranks");
  for (int64_t count : rows) TORCH_CHECK(count >= 0, caller, "a rank cannot have ", count, " rows");
  const int64_t sum = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  TORCH_CHECK(sum == total, caller, "rows add up to ", sum, ", but ", name, " has ", total);
  return rows;
}

/// `part` must be `rows` rows of `whole`'s shape and dtype.
void check_part(const Caller& caller, const at::Tensor& part, const char* part_name,
                const at::Tensor& whole, const char* whole_name, int64_t rows) {
  TORCH_CHECK(part.scalar_type() == whole.scalar_type(), caller, part_name, " is ",
              part.scalar_type(), " but ", whole_name, " is ", whole.scalar_type());
  TORCH_CHECK(part.device() == whole.device(), caller, part_name, " is on ", part.device(), " but ",
              whole_name, " is on ", whole.device());
  const int64_t per_row = whole.size(0) > 0 ? whole.numel() / whole.size(0) : 0;
  TORCH_CHECK(part.numel() == rows * per_row, caller, part_name, " of shape ", part.sizes(),
              " is not this rank's ", rows, " rows of ", whole_name, ", which is ", whole.sizes());
}

OpInfo make_info(OpKind kind, const at::Tensor& shape_of) {
  OpInfo info;
  info.kind = kind;
  info.dtype = dtype_of(shape_of);
  info.item_bytes = static_cast<uint8_t>(shape_of.element_size());
  info.set_shape({shape_of.sizes().data(), shape_of.sizes().size()});
  return info;
}

/// Leaves the number of rows out of the description, for operations in which it differs between
/// ranks.
void forget_rows(OpInfo& info) {
  if (info.ndim > 0) info.dims[0] = -1;
}

OpInfo with_root(OpInfo info, int root, ReduceOp reduce = ReduceOp::Sum,
                 Algorithm algorithm = Algorithm::Auto) {
  info.root = static_cast<int16_t>(root);
  info.reduce = reduce;
  info.algorithm = algorithm;
  return info;
}

OpInfo with_rows(OpInfo info, const Rows& rows) {
  info.set_rows(rows);
  return info;
}

/// Describes a scatter or gather. Only the root has the whole tensor; the others know only their
/// part.
template <class T>
OpInfo describe_rooted(const Caller& caller, const T& op, const at::Tensor& part,
                       const char* part_name, const at::Tensor& whole, const char* whole_name) {
  check_rank(caller, op.root, "root");
  check_tensor(caller, part, part_name);
  TORCH_CHECK(part.dim() > 0, caller, part_name, " has no dim 0; pass .unsqueeze(0)");
  OpInfo info = with_root(make_info(caller.kind, part), op.root);
  if (!op.rows.empty()) {
    TORCH_CHECK(static_cast<int>(op.rows.size()) == caller.size, caller, "rows has ",
                op.rows.size(), " entries for ", caller.size, " ranks");
    TORCH_CHECK(op.rows[static_cast<std::size_t>(caller.rank)] == part.size(0), caller, part_name,
                " has ", part.size(0), " rows, but `rows` says ",
                op.rows[static_cast<std::size_t>(caller.rank)]);
    forget_rows(info);
    info = with_rows(info, op.rows);
  }
  if (caller.rank == op.root) {
    check_tensor(caller, whole, whole_name);
    const Rows rows = full_rows(caller, op.rows, whole, whole_name);
    check_part(caller, part, part_name, whole, whole_name,
               rows[static_cast<std::size_t>(caller.rank)]);
  }
  return info;
}

/// Describes a send or recv. `verb` and `preposition` name the peer in messages: "send to".
template <class T>
OpInfo describe_transfer(const Caller& caller, const T& op, int peer, const char* verb,
                         const char* preposition) {
  check_tensor(caller, op.data, "data");
  check_rank(caller, peer, preposition);
  TORCH_CHECK(peer != caller.rank, caller, "a rank cannot ", verb, " ", preposition, " itself");
  OpInfo info = with_root(make_info(caller.kind, op.data), peer);
  info.tag = op.tag;
  return info;
}

std::vector<int64_t> begins(const Rows& rows, int64_t row_bytes) {
  std::vector<int64_t> at{0};
  for (int64_t count : rows) at.push_back(at.back() + count * row_bytes);
  return at;
}

Rows even_rows(const Rows& rows, int64_t total, int size) {
  return rows.empty() ? Rows(static_cast<std::size_t>(size), total / size) : rows;
}

int64_t row_bytes(const at::Tensor& t) {
  int64_t bytes = t.element_size();
  for (int64_t dim = 1; dim < t.dim(); ++dim) bytes *= t.size(dim);
  return bytes;
}

std::byte* data(const at::Tensor& t) {
  return t.defined() ? static_cast<std::byte*>(t.data_ptr()) : nullptr;
}

OpInfo describe_kind(const Op& op, int rank, int size) {
  const auto caller = [&](OpKind kind) { return Caller{kind, rank, size}; };
  return std::visit(
      Overloaded{
          [&](const AllReduce& o) {
            const Caller me = caller(OpKind::AllReduce);
            check_tensor(me, o.data, "data");
            check_reduces(me, o.data);
            return with_root(make_info(me.kind, o.data), -1, o.op, o.algorithm);
          },
          [&](const Broadcast& o) {
            const Caller me = caller(OpKind::Broadcast);
            check_tensor(me, o.data, "data");
            check_rank(me, o.root, "root");
            return with_root(make_info(me.kind, o.data), o.root, ReduceOp::Sum, o.algorithm);
          },
          [&](const Reduce& o) {
            const Caller me = caller(OpKind::Reduce);
            check_tensor(me, o.data, "data");
            check_reduces(me, o.data);
            check_rank(me, o.root, "root");
            return with_root(make_info(me.kind, o.data), o.root, o.op, o.algorithm);
          },
          [&](const AllGather& o) {
            const Caller me = caller(OpKind::AllGather);
            check_tensor(me, o.out, "out");
            check_tensor(me, o.in, "in");
            const Rows rows = full_rows(me, o.rows, o.out, "out");
            check_part(me, o.in, "in", o.out, "out", rows[static_cast<std::size_t>(rank)]);
            return with_rows(with_root(make_info(me.kind, o.out), -1, ReduceOp::Sum, o.algorithm),
                             o.rows);
          },
          [&](const ReduceScatter& o) {
            const Caller me = caller(OpKind::ReduceScatter);
            check_tensor(me, o.out, "out");
            check_tensor(me, o.in, "in");
            check_reduces(me, o.in);
            const Rows rows = full_rows(me, o.rows, o.in, "in");
            check_part(me, o.out, "out", o.in, "in", rows[static_cast<std::size_t>(rank)]);
            return with_rows(with_root(make_info(me.kind, o.in), -1, o.op, o.algorithm), o.rows);
          },
          [&](const AllToAll& o) {
            const Caller me = caller(OpKind::AllToAll);
            check_tensor(me, o.out, "out");
            check_tensor(me, o.in, "in");
            full_rows(me, o.out_rows, o.out, "out");
            full_rows(me, o.in_rows, o.in, "in");
            TORCH_CHECK(o.out.scalar_type() == o.in.scalar_type(), me, "out is ",
                        o.out.scalar_type(), " but in is ", o.in.scalar_type());
            TORCH_CHECK(row_bytes(o.out) == row_bytes(o.in), me, "a row of out, ", o.out.sizes(),
                        ", is not a row of in, ", o.in.sizes());
            OpInfo info = make_info(me.kind, o.in);
            forget_rows(info);
            return info;
          },
          [&](const Gather& o) {
            return describe_rooted(caller(OpKind::Gather), o, o.in, "in", o.out, "out");
          },
          [&](const Scatter& o) {
            return describe_rooted(caller(OpKind::Scatter), o, o.out, "out", o.in, "in");
          },
          [&](const Send& o) {
            return describe_transfer(caller(OpKind::Send), o, o.to, "send", "to");
          },
          [&](const Recv& o) {
            return describe_transfer(caller(OpKind::Recv), o, o.from, "receive", "from");
          },
          [&](const Barrier&) {
            OpInfo info;
            info.kind = OpKind::Barrier;
            info.item_bytes = 1;
            return info;
          },
      },
      op);
}

}  // namespace

core::OpInfo describe(const Op& op, int rank, int size) {
  const OpInfo info = describe_kind(op, rank, size);
  TORCH_CHECK(has_algorithm(info.kind, info.algorithm), Caller{info.kind, rank, size},
              "it has no algorithm '", core::to_string(info.algorithm), "'");
  return info;
}

LoweredOp lower(const Op& op, const core::OpInfo& info, int size) {
  LoweredOp lowered{.info = info};
  const auto whole = [&](const at::Tensor& t) {
    lowered.in = lowered.out = data(t);
    lowered.bytes = static_cast<int64_t>(t.nbytes());
  };
  const auto cut = [&](const at::Tensor& out, const at::Tensor& in) {
    lowered.out = data(out);
    lowered.in = data(in);
  };
  std::visit(
      Overloaded{
          [&](const AllReduce& o) { whole(o.data); },
          [&](const Broadcast& o) { whole(o.data); },
          [&](const Reduce& o) { whole(o.data); },
          [&](const Send& o) { whole(o.data); },
          [&](const Recv& o) { whole(o.data); },
          [&](const AllGather& o) {
            cut(o.out, o.in);
            lowered.out_begin = begins(even_rows(o.rows, o.out.size(0), size), row_bytes(o.out));
            lowered.bytes = lowered.out_begin.back();
          },
          [&](const ReduceScatter& o) {
            cut(o.out, o.in);
            lowered.in_begin = begins(even_rows(o.rows, o.in.size(0), size), row_bytes(o.in));
            lowered.bytes = lowered.in_begin.back();
          },
          [&](const AllToAll& o) {
            cut(o.out, o.in);
            lowered.in_begin = begins(even_rows(o.in_rows, o.in.size(0), size), row_bytes(o.in));
            lowered.out_begin =
                begins(even_rows(o.out_rows, o.out.size(0), size), row_bytes(o.out));
            lowered.bytes = lowered.in_begin.back();
          },
          [&](const Gather& o) {
            cut(o.out, o.in);
            lowered.out_begin =
                begins(even_rows(o.rows, o.in.size(0) * size, size), row_bytes(o.in));
            lowered.bytes = lowered.out_begin.back();
          },
          [&](const Scatter& o) {
            cut(o.out, o.in);
            lowered.in_begin =
                begins(even_rows(o.rows, o.out.size(0) * size, size), row_bytes(o.out));
            lowered.bytes = lowered.in_begin.back();
          },
          [](const Barrier&) {},
      },
      op);
  return lowered;
}

std::optional<at::Device> device_of(const Op& op) {
  return std::visit(Overloaded{
                        [](const Barrier&) { return std::optional<at::Device>(at::kCPU); },
                        [](const auto& o) -> std::optional<at::Device> {
                          if constexpr (requires { o.data; }) {
                            return o.data.device();
                          } else {
                            // Only the root of a gather or scatter has both.
                            if (!o.out.defined()) return o.in.device();
                            if (o.in.defined() && o.in.device() != o.out.device())
                              return std::nullopt;
                            return o.out.device();
                          }
                        },
                    },
                    op);
}

namespace {

/// The tensors of one side of an operation. Barrier and `Idle` have none there; where input and
/// output are not the same memory, `side` returns the right one.
template <class Idle, class Side>
std::vector<at::Tensor*> tensors_of_side(Op& op, Side side) {
  return std::visit(Overloaded{
                        [](Barrier&) { return std::vector<at::Tensor*>{}; },
                        [](Idle&) { return std::vector<at::Tensor*>{}; },
                        [&](auto& o) {
                          if constexpr (requires { o.data; })
                            return std::vector{&o.data};
                          else
                            return std::vector{side(o)};
                        },
                    },
                    op);
}

}  // namespace

std::vector<at::Tensor*> inputs(Op& op) {
  return tensors_of_side<Recv>(op, [](auto& o) { return &o.in; });
}

std::vector<at::Tensor*> outputs(Op& op) {
  return tensors_of_side<Send>(op, [](auto& o) { return &o.out; });
}

}  // namespace trireme::comm
