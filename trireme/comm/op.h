#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "trireme/comm/lowered_op.h"
#include "trireme/core/op_info.h"

namespace trireme::comm {

using core::Algorithm;
using core::ReduceOp;

/// Rows (of dim 0) of each rank's part; empty: every rank has the same number.
using Rows = std::vector<int64_t>;

// Every operation is a plain struct, and `Op` is the closed set of them: running, recording,
// tracing and pricing are interpreters of the same value.
// clang-format off
struct AllReduce     { at::Tensor data; ReduceOp op = ReduceOp::Sum; Algorithm algorithm = Algorithm::Auto; };
struct Broadcast     { at::Tensor data; int root = 0; Algorithm algorithm = Algorithm::Auto; };
struct Reduce        { at::Tensor data; int root = 0; ReduceOp op = ReduceOp::Sum; Algorithm algorithm = Algorithm::Auto; };
struct AllGather     { at::Tensor out, in; Rows rows = {}; Algorithm algorithm = Algorithm::Auto; };
struct ReduceScatter { at::Tensor out, in; ReduceOp op = ReduceOp::Sum; Rows rows = {}; Algorithm algorithm = Algorithm::Auto; };
struct AllToAll      { at::Tensor out, in; Rows out_rows = {}, in_rows = {}; };
struct Gather        { at::Tensor out, in; int root = 0; Rows rows = {}; };   // out: only at the root
struct Scatter       { at::Tensor out, in; int root = 0; Rows rows = {}; };   // in: only at the root
struct Send          { at::Tensor data; int to = 0, tag = 0; };
struct Recv          { at::Tensor data; int from = 0, tag = 0; };
struct Barrier       {};
// clang-format on

using Op = std::variant<AllReduce, Broadcast, Reduce, AllGather, ReduceScatter, AllToAll, Gather,
                        Scatter, Send, Recv, Barrier>;

/// Checks the operation for this rank of a group and describes it. Throws a c10::Error that names
/// the operation, the values and the remedy.
core::OpInfo describe(const Op& op, int rank, int size);

/// The operation on plain memory. `op` has passed `describe`.
LoweredOp lower(const Op& op, const core::OpInfo& info, int size);

/// The device that all its tensors are on; the CPU if it has none. Nothing if they are on several.
std::optional<at::Device> device_of(const Op& op);

/// The tensors that an operation reads and those that it writes, for callers that replace them.
std::vector<at::Tensor*> inputs(Op& op);
std::vector<at::Tensor*> outputs(Op& op);

}  // namespace trireme::comm
