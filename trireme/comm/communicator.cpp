#include "trireme/comm/communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"

namespace trireme::comm {

struct Communicator::Group {
  std::string name;
  std::shared_ptr<Backend> backend;
  uint64_t collectives = 0;  ///< started so far
  uint64_t transfers = 0;    ///< sends and receives
};

namespace {

/// Checks the lists of a collective over several tensors; `rows` may be empty.
void check_lists(const char* collective, const std::vector<at::Tensor>& out,
                 const std::vector<at::Tensor>& in, const std::vector<Rows>& rows) {
  TORCH_CHECK(out.size() == in.size(), collective, ": ", out.size(), " outputs but ", in.size(),
              " inputs");
  TORCH_CHECK(rows.empty() || rows.size() == in.size(), collective, ": ", rows.size(),
              " lists of rows for ", in.size(), " tensors");
}

/// "cuda" is the current GPU.
at::Device indexed(at::Device device) {
  if (device.is_cpu() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

at::Tensor pinned_host_memory_for(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
}

/// Replaces GPU tensors by pinned host copies and notes what to copy back.
void stage_through_host(Op& op, Work::StartedOps& started) {
  for (at::Tensor* input : inputs(op)) {
    if (!input->defined() || input->is_cpu()) continue;
    const at::Tensor host = pinned_host_memory_for(*input);
    host.copy_(*input);
    // Most operations work in place: the input is then also the output.
    for (at::Tensor* output : outputs(op)) {
      if (output == input) started.copy_back.emplace_back(*input, host);
    }
    *input = host;
  }
  for (at::Tensor* output : outputs(op)) {
    if (!output->defined() || output->is_cpu()) continue;
    const at::Tensor host = pinned_host_memory_for(*output);
    started.copy_back.emplace_back(*output, host);
    *output = host;
  }
}

}  // namespace

Communicator::Communicator(std::string name, std::shared_ptr<Backend> backend)
    : group_(std::make_shared<Group>()) {
  group_->name = std::move(name);
  group_->backend = std::move(backend);
}

int Communicator::rank() const {
  return group_->backend->rank();
}
int Communicator::size() const {
  return group_->backend->size();
}
const std::string& Communicator::name() const {
  return group_->name;
}
void Communicator::set_timeout(std::chrono::nanoseconds timeout) const {
  group_->backend->set_timeout(timeout);
}
void Communicator::abort(const std::string& why) const {
  group_->backend->abort(why);
}
std::string Communicator::backend() const {
  return group_->backend->kind();
}
std::shared_ptr<Backend> Communicator::carrier() const {
  return group_->backend;
}
void Communicator::note(std::string_view doing) const {
  group_->backend->note(doing);
}

void Communicator::set_trace(std::shared_ptr<core::Trace> trace) const {
  group_->backend->set_trace(std::move(trace));
}

Traffic Communicator::traffic() const {
  return group_->backend->traffic();
}

Work Communicator::start(Op op) const {
  const core::OpInfo info = describe(op, rank(), size());
  auto started = std::make_unique<Work::StartedOps>();
  started->ops.push_back(std::move(op));
  start_one(started->ops.front(), info, *started);
  return Work(std::move(started));
}

Work Communicator::start_all(std::vector<Op> ops, std::string_view name) const {
  // All are checked before the first is started: a list is one operation to its caller.
  std::vector<core::OpInfo> infos;
  for (const Op& op : ops) {
    infos.push_back(describe(op, rank(), size()));
    if (name.empty()) continue;
    infos.back().set_name(name);
    infos.back().tag = static_cast<int32_t>(core::hash64(name));
  }
  auto owned = std::make_unique<Work::StartedOps>();
  Work::StartedOps& started = *owned;
  for (Op& op : ops) started.ops.push_back(std::move(op));
  started.pending.reserve(infos.size());
  // If one cannot be started, `work` waits for those before it while their tensors still exist.
  Work work(std::move(owned));
  for (std::size_t i = 0; i < infos.size(); ++i) start_one(started.ops[i], infos[i], started);
  return work;
}

void Communicator::start_one(Op& op, const core::OpInfo& info, Work::StartedOps& started) const {
  started.timeout = group_->backend->timeout();
  started.group = group_->backend;
  const auto device = device_of(op);
  if (!device || !group_->backend->takes(*device)) stage_through_host(op, started);
  const uint64_t number = info.is_transfer() ? ++group_->transfers : ++group_->collectives;
  group_->backend->check(info, number);
  try {
    if (auto pending = group_->backend->start(op, info, number))
      started.pending.push_back(std::move(pending));
  } catch (const std::bad_alloc&) {
    // This rank has counted it, so the others will wait for it.
    group_->backend->abort(fmt::format("no memory to start {}", core::to_string(info)));
    throw;
  }
}

Work Communicator::all_reduce(at::Tensor data, ReduceOp op, Algorithm algorithm) const {
  return start(AllReduce{std::move(data), op, algorithm});
}

Work Communicator::broadcast(at::Tensor data, int root, Algorithm algorithm) const {
  return start(Broadcast{std::move(data), root, algorithm});
}

Work Communicator::reduce(at::Tensor data, int root, ReduceOp op, Algorithm algorithm) const {
  return start(Reduce{std::move(data), root, op, algorithm});
}

Work Communicator::all_gather(at::Tensor out, at::Tensor in, Rows rows, Algorithm algorithm) const {
  return start(AllGather{std::move(out), std::move(in), std::move(rows), algorithm});
}

Work Communicator::reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op, Rows rows,
                                  Algorithm algorithm) const {
  return start(ReduceScatter{std::move(out), std::move(in), op, std::move(rows), algorithm});
}

Work Communicator::all_gather(std::vector<at::Tensor> out, std::vector<at::Tensor> in,
                              std::vector<Rows> rows, std::string_view name) const {
  check_lists("all_gather", out, in, rows);
  std::vector<Op> ops;
  for (std::size_t i = 0; i < in.size(); ++i)
    ops.push_back(AllGather{out[i], in[i], rows.empty() ? Rows{} : rows[i]});
  return start_all(std::move(ops), name);
}

Work Communicator::reduce_scatter(std::vector<at::Tensor> out, std::vector<at::Tensor> in,
                                  ReduceOp op, std::vector<Rows> rows,
                                  std::string_view name) const {
  check_lists("reduce_scatter", out, in, rows);
  std::vector<Op> ops;
  for (std::size_t i = 0; i < in.size(); ++i)
    ops.push_back(ReduceScatter{out[i], in[i], op, rows.empty() ? Rows{} : rows[i]});
  return start_all(std::move(ops), name);
}

Work Communicator::all_to_all(at::Tensor out, at::Tensor in, Rows out_rows, Rows in_rows) const {
  return start(AllToAll{std::move(out), std::move(in), std::move(out_rows), std::move(in_rows)});
}

Work Communicator::gather(at::Tensor out, at::Tensor in, int root, Rows rows) const {
  return start(Gather{std::move(out), std::move(in), root, std::move(rows)});
}

Work Communicator::scatter(at::Tensor out, at::Tensor in, int root, Rows rows) const {
  return start(Scatter{std::move(out), std::move(in), root, std::move(rows)});
}

Work Communicator::send(at::Tensor data, int to, int tag) const {
  return start(Send{std::move(data), to, tag});
}
Work Communicator::recv(at::Tensor data, int from, int tag) const {
  return start(Recv{std::move(data), from, tag});
}
void Communicator::barrier() const {
  start(Barrier{}).wait();
}

Work Communicator::replay(std::string_view name, const std::function<void()>& launch) const {
  core::OpInfo info = describe(Barrier{}, rank(), size());
  info.set_name(name);
  info.tag = static_cast<int32_t>(core::hash64(name));
  auto started = std::make_unique<Work::StartedOps>();
  started->timeout = group_->backend->timeout();
  started->group = group_->backend;
  const uint64_t number = ++group_->collectives;
  group_->backend->check(info, number);
  if (auto pending = group_->backend->replay(launch, info, number))
    started->pending.push_back(std::move(pending));
  return Work(std::move(started));
}

Communicator Communicator::split(std::string name, int color, int key) const {
  TORCH_CHECK(color >= 0, "split '", name, "' of '", group_->name, "', rank ", rank(), ": color ",
              color, " is negative");
  auto backend = group_->backend->split(name, color, key, group_->collectives);
  return {std::move(name), std::move(backend)};
}

Communicator Communicator::alone(std::string name) const {
  auto backend = group_->backend->alone(name);
  return {std::move(name), std::move(backend)};
}

at::Tensor Communicator::allocate(at::IntArrayRef shape, at::TensorOptions options) const {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (int64_t dim : shape) {
    TORCH_CHECK(dim >= 0, "allocate: shape ", shape, " has a negative dim");
    TORCH_CHECK(!__builtin_mul_overflow(bytes, dim, &bytes), "allocate: shape ", shape,
                " is too large: its bytes do not fit 64 bits");
  }
  const at::Device device = indexed(options.device());
  if (!group_->backend->takes(device)) return at::zeros(shape, options);
  auto memory = group_->backend->allocate(bytes, device, group_->collectives);
  if (!memory) return at::zeros(shape, options);
  // Reported to memory profilers, as libtorch's own allocators do.
  c10::reportMemoryUsageToProfiler(memory.get(), bytes, 0, 0, device);
  const auto free = [memory, bytes, device](void* place) {
    c10::reportMemoryUsageToProfiler(place, -bytes, 0, 0, device);
  };
  at::Tensor tensor = at::from_blob(memory.get(), shape, free, options.device(device));
  return device.is_cpu() ? tensor : tensor.zero_();
}

}  // namespace trireme::comm
