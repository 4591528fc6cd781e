#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/group_backend.h"
#include "trireme/comm/nccl/watcher.h"

namespace trireme::comm::nccl {

/// A group of ranks with a GPU each. Tensors in host memory go the way of the host group; for those
/// on a GPU:
///
///   caller's stream   ... produces x ──ready──┐              ┌── wait() ── uses x ...
///   channel's stream                          └── kernels ──done
///   hosts             start() ────────────── sentinel: the same op without data
///   watcher                   ... looks at `done`, the sentinel, NCCL and the world
///
/// The sentinel runs through the host group with the number and the description of the real op. So
/// all that is true of an op in host memory is true of one on a GPU: fingerprints are compared, it
/// is recorded, and who is missing, has left or died is named.
class NcclBackend final : public Backend {
 public:
  NcclBackend(std::shared_ptr<GroupBackend> host, std::shared_ptr<Watcher> watcher,
              Sharing sharing);
  ~NcclBackend() override;

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  bool takes(at::Device device) const override { return device.is_cpu() || device.is_cuda(); }
  std::shared_ptr<PendingOp> start(const Op& op, const core::OpInfo& info,
                                   uint64_t number) override;
  std::shared_ptr<PendingOp> replay(const std::function<void()>& launch, const core::OpInfo& info,
                                    uint64_t number) override;
  std::shared_ptr<Backend> split(const std::string& name, int color, int key,
                                 uint64_t& number) override;
  std::shared_ptr<Backend> alone(const std::string& name) override;
  /// On a GPU: memory that NCCL has registered, where its version can (2.19).
  std::shared_ptr<std::byte> allocate(int64_t bytes, at::Device device, uint64_t& number) override;
  void step() override { host_->step(); }
  void abort(const std::string& why) noexcept override { host_->abort(why); }
  void abandon() noexcept override { host_->abandon(); }
  void check(const core::OpInfo& info, uint64_t number) override { host_->check(info, number); }
  std::chrono::nanoseconds timeout() const override { return host_->timeout(); }
  void set_timeout(std::chrono::nanoseconds timeout) override { host_->set_timeout(timeout); }
  /// Counts what the hosts move: NCCL does not tell.
  Traffic traffic() const override { return host_->traffic(); }
  void note(std::string_view doing) override { host_->note(doing); }
  void set_trace(std::shared_ptr<core::Trace> trace) override {
    host_->set_trace(std::move(trace));
  }
  std::string kind() const override;

 private:
  /// The channel to or from a peer, and how many ops it has had: NCCL has no tags, so both ends
  /// must count alike.
  struct OneDirection {
    std::shared_ptr<Channel> channel;
    int64_t ops = 0;
  };

  std::shared_ptr<PendingOp> start_on_gpu(const Op& op, const core::OpInfo& info, uint64_t number);
  void launch(Channel& channel, const std::shared_ptr<Flight>& flight, const LoweredOp& lowered);
  std::shared_ptr<Channel> make_channel(Channel::Members members, at::Device device);
  std::shared_ptr<Channel> group_channel(at::Device device);
  OneDirection& direction(const core::OpInfo& info, at::Device device);
  void start_sentinel(const std::shared_ptr<Flight>& flight, const LoweredOp& lowered);
  void start_sizes(Flight& flight, const LoweredOp& lowered, const core::OpInfo& marked);
  void start_order(const std::shared_ptr<Flight>& flight, const core::OpInfo& info);

  const std::shared_ptr<GroupBackend> host_;
  const std::shared_ptr<Watcher> watcher_;
  const Sharing sharing_;
  const at::Tensor nothing_;
  std::shared_ptr<Channel> channel_;  ///< of the collectives; null until the first one
  std::map<std::pair<int, core::OpKind>, OneDirection> directions_;
};

}  // namespace trireme::comm::nccl
