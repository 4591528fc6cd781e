#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/backend.h"
#include "trireme/comm/op.h"
#include "trireme/comm/work.h"

namespace trireme::comm {

/// A group of ranks that can talk. A cheap handle: copies share the group.
///
/// Collectives run in the order in which they are started, and every rank of the group must start
/// the same ones. Sends and receives match in order per (peer, direction, tag) and wait for nothing
/// else. Tensors must be contiguous; those on a GPU travel over NCCL, or through pinned host memory
/// if the ranks do not use it. Not thread-safe: give each thread a `split`.
class Communicator {
 public:
  Communicator(std::string name, std::shared_ptr<Backend> backend);

  int rank() const;
  int size() const;
  const std::string& name() const;

  Work all_reduce(at::Tensor data, ReduceOp op = ReduceOp::Sum,
                  Algorithm algorithm = Algorithm::Auto) const;
  Work broadcast(at::Tensor data, int root, Algorithm algorithm = Algorithm::Auto) const;
  /// The result is at the root; the others' data stays as it was.
  Work reduce(at::Tensor data, int root, ReduceOp op = ReduceOp::Sum,
              Algorithm algorithm = Algorithm::Auto) const;

  /// The larger tensor is cut along dim 0, part r for rank r: evenly, or as `rows` says.
  Work all_gather(at::Tensor out, at::Tensor in, Rows rows = {},
                  Algorithm algorithm = Algorithm::Auto) const;
  Work reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op = ReduceOp::Sum, Rows rows = {},
                      Algorithm algorithm = Algorithm::Auto) const;

  /// Several at once: out[i] and in[i] belong together, cut as rows[i] says (or all evenly). If
  /// ranks pass different names, the error shows both: tensors of the same shape may still be
  /// different ones.
  Work all_gather(std::vector<at::Tensor> out, std::vector<at::Tensor> in,
                  std::vector<Rows> rows = {}, std::string_view name = {}) const;
  Work reduce_scatter(std::vector<at::Tensor> out, std::vector<at::Tensor> in,
                      ReduceOp op = ReduceOp::Sum, std::vector<Rows> rows = {},
                      std::string_view name = {}) const;

  /// Sends `in_rows[r]` rows to rank r and receives `out_rows[r]` from it; any may be 0.
  Work all_to_all(at::Tensor out, at::Tensor in, Rows out_rows = {}, Rows in_rows = {}) const;

  /// Gather uses `out`, and scatter `in`, only on the root; elsewhere they may be undefined.
  Work gather(at::Tensor out, at::Tensor in, int root, Rows rows = {}) const;
  Work scatter(at::Tensor out, at::Tensor in, int root, Rows rows = {}) const;

  Work send(at::Tensor data, int to, int tag = 0) const;
  Work recv(at::Tensor data, int from, int tag = 0) const;
  void barrier() const;

  /// Any of the above as a value.
  Work start(Op op) const;

  /// Runs `launch`, which replays a CUDA graph with ops of this world on the current stream. To the
  /// other ranks, to the records and to timeouts the replay is one op of this group, called `name`.
  /// Collective.
  Work replay(std::string_view name, const std::function<void()>& launch) const;

  /// Ranks with the same color form a group, ordered by key, then by rank. Collective.
  Communicator split(std::string name, int color, int key) const;

  /// A group of this rank alone, in the same world. Not collective.
  Communicator alone(std::string name) const;

  /// Zeroed memory that the other ranks of this host have mapped, so that reductions work in place
  /// on it; on a GPU, memory that NCCL has registered. Each rank may ask for its own shape. Where
  /// there is no such memory (tcp, a GPU without NCCL), returns a plain tensor. Collective.
  at::Tensor allocate(at::IntArrayRef shape, at::TensorOptions options = {}) const;

  /// From now on, an operation of this group that waits longer throws TimeoutError.
  void set_timeout(std::chrono::nanoseconds timeout) const;

  /// Ends the world: all its ranks get an error that carries `why`.
  void abort(const std::string& why) const;

  /// Says what this rank does from now on: if it dies or hangs, the errors of the others say so. An
  /// empty text clears it. At most 127 bytes are kept.
  void note(std::string_view doing) const;

  /// From now on every operation of this rank, in all groups of its world, is added to the trace
  /// when it ends. nullptr: stop tracing.
  void set_trace(std::shared_ptr<core::Trace> trace) const;

  /// What carries the data: "local", "shm", "tcp" or "nccl".
  std::string backend() const;

  /// The backend itself, for one that stands before it. It must not start ops beside this group,
  /// which numbers them.
  std::shared_ptr<Backend> carrier() const;

  /// What this rank has moved so far, in all groups of its world.
  Traffic traffic() const;

 private:
  struct Group;
  void start_one(Op& op, const core::OpInfo& info, Work::StartedOps& started) const;
  Work start_all(std::vector<Op> ops, std::string_view name) const;
  std::shared_ptr<Group> group_;
};

}  // namespace trireme::comm
