#include "support/through_gpu.h"

#include <torch/cuda.h>
#include <torch/types.h>

#include "trireme/comm/nccl/library.h"

namespace trireme::test {

namespace {

using comm::Backend;
using comm::Op;
using comm::PendingOp;

class CopiedBack final : public PendingOp {
 public:
  CopiedBack(std::shared_ptr<PendingOp> started, Op on_gpu,
             std::vector<std::pair<at::Tensor, at::Tensor>> results)
      : on_gpu_(std::move(on_gpu)), results_(std::move(results)), started_(std::move(started)) {}

  bool done() const override { return !started_ || started_->done(); }

  void wait(std::chrono::nanoseconds timeout) override {
    if (started_) {
      started_->wait(timeout);
      started_->synchronize(timeout);
    }
    for (auto& [to, from] : results_) to.copy_(from);
    results_.clear();
  }

 private:
  Op on_gpu_;                                               ///< keeps its tensors
  std::vector<std::pair<at::Tensor, at::Tensor>> results_;  ///< to, from
  std::shared_ptr<PendingOp> started_;
};

class ThroughGpu final : public Backend {
 public:
  ThroughGpu(std::shared_ptr<Backend> below, at::Device gpu)
      : below_(std::move(below)), gpu_(gpu) {}

  int rank() const override { return below_->rank(); }
  int size() const override { return below_->size(); }
  bool takes(at::Device) const override { return true; }

  std::shared_ptr<PendingOp> start(const Op& op, const core::OpInfo& info,
                                   uint64_t number) override {
    if (std::holds_alternative<comm::Barrier>(op)) return below_->start(op, info, number);
    Op on_gpu = op;
    std::vector<std::pair<at::Tensor, at::Tensor>> results;
    // In place, the input is the output, too: it is copied when it is met as an input.
    for (at::Tensor* tensor : inputs(on_gpu)) {
      if (!tensor->defined() || !tensor->is_cpu()) continue;
      const at::Tensor host = *tensor;
      *tensor = host.to(gpu_);
      for (const at::Tensor* output : outputs(on_gpu))
        if (output == tensor) results.emplace_back(host, *tensor);
    }
    for (at::Tensor* tensor : outputs(on_gpu)) {
      if (!tensor->defined() || !tensor->is_cpu()) continue;
      const at::Tensor host = *tensor;
      *tensor = host.to(gpu_);
      results.emplace_back(host, *tensor);
    }
    auto started = below_->start(on_gpu, info, number);
    return std::make_shared<CopiedBack>(std::move(started), std::move(on_gpu), std::move(results));
  }

  std::shared_ptr<Backend> split(const std::string& name, int color, int key,
                                 uint64_t& number) override {
    return std::make_shared<ThroughGpu>(below_->split(name, color, key, number), gpu_);
  }
  std::shared_ptr<Backend> alone(const std::string& name) override {
    return std::make_shared<ThroughGpu>(below_->alone(name), gpu_);
  }
  std::shared_ptr<std::byte> allocate(int64_t bytes, at::Device device, uint64_t& number) override {
    return below_->allocate(bytes, device, number);
  }
  void step() override { below_->step(); }
  void abort(const std::string& why) noexcept override { below_->abort(why); }
  void abandon() noexcept override { below_->abandon(); }
  void check(const core::OpInfo& info, uint64_t number) override { below_->check(info, number); }
  std::chrono::nanoseconds timeout() const override { return below_->timeout(); }
  void set_timeout(std::chrono::nanoseconds timeout) override { below_->set_timeout(timeout); }
  comm::Traffic traffic() const override { return below_->traffic(); }
  void note(std::string_view doing) override { below_->note(doing); }
  void set_trace(std::shared_ptr<core::Trace> trace) override {
    below_->set_trace(std::move(trace));
  }
  std::string kind() const override { return below_->kind(); }

 private:
  const std::shared_ptr<Backend> below_;
  const at::Device gpu_;
};

}  // namespace

bool nccl_available() {
  static const bool available = torch::cuda::is_available() &&
                                comm::nccl::usable_version() >= comm::nccl::Library::kSharedGpu;
  return available;
}

at::Device gpu_of(int rank) {
  return {at::kCUDA,
          static_cast<at::DeviceIndex>(rank % static_cast<int>(torch::cuda::device_count()))};
}

comm::Communicator through_gpu(const comm::Communicator& world) {
  // A group of its own: the world has counted ops already, and a new Communicator begins at 0.
  const auto own = world.split(world.name(), 0, world.rank());
  return {world.name(), std::make_shared<ThroughGpu>(own.carrier(), gpu_of(world.rank()))};
}

}  // namespace trireme::test
