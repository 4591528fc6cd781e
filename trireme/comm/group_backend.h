#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/backend.h"
#include "trireme/comm/lane.h"
#include "trireme/comm/shared/group.h"
#include "trireme/comm/world.h"

namespace trireme::comm {

/// A group of a world's ranks, for local, shm and tcp alike: the three differ in how their world
/// moves bytes and in whether the ranks of the group share memory.
class GroupBackend final : public Backend {
 public:
  /// `memory`: what the ranks of the group share; empty if they share none.
  GroupBackend(std::shared_ptr<World> world, std::unique_ptr<Lane> lane, Mapping memory);
  ~GroupBackend() override;

  int rank() const override { return lane_->rank; }
  int size() const override { return lane_->size(); }
  bool takes(at::Device device) const override { return device.is_cpu(); }
  std::shared_ptr<PendingOp> start(const Op& op, const core::OpInfo& info,
                                   uint64_t number) override;
  std::shared_ptr<Backend> split(const std::string& name, int color, int key,
                                 uint64_t& number) override;
  std::shared_ptr<Backend> alone(const std::string& name) override;
  std::shared_ptr<std::byte> allocate(int64_t bytes, at::Device device, uint64_t& number) override;
  void step() override;
  void abort(const std::string& why) noexcept override;
  void abandon() noexcept override;
  void check(const core::OpInfo& info, uint64_t number) override;
  std::chrono::nanoseconds timeout() const override { return timeout_; }
  void set_timeout(std::chrono::nanoseconds timeout) override { timeout_ = timeout; }
  Traffic traffic() const override;
  void note(std::string_view doing) override { world_->note(doing); }
  void set_trace(std::shared_ptr<core::Trace> trace) override {
    world_->set_trace(std::move(trace));
  }
  std::string kind() const override { return world_->kind(); }

  /// For a backend that adds another way of moving bytes to this one.
  World& world() const { return *world_; }
  const Lane& lane() const { return *lane_; }

 private:
  std::shared_ptr<Task> make_task(LoweredOp lowered, uint64_t number);
  /// Returns what every rank passed, in rank order; all pass the same number of bytes. For small
  /// internal data; blocks.
  std::vector<std::byte> exchange_bytes(std::span<const std::byte> mine, uint64_t& number);
  template <class T>
  std::vector<T> exchange(const T& mine, uint64_t& number);
  /// Throws on all ranks if one of them passed a problem: the first one. An empty text is no
  /// problem.
  void agree(const std::string& problem, const std::string& what, uint64_t& number);
  std::vector<uint64_t> free_everywhere(const std::vector<uint64_t>& offered, std::size_t most,
                                        uint64_t& number);
  void make_memory(uint64_t id, const std::vector<int64_t>& wanted, uint64_t& number);

  std::shared_ptr<World> world_;
  std::unique_ptr<Lane> lane_;
  std::unique_ptr<SharedGroup> shared_;
  std::chrono::nanoseconds timeout_;
};

}  // namespace trireme::comm
