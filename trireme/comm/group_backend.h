#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/backend.h"
#include "trireme/comm/lane.h"
#include "trireme/comm/shared/group.h"
#include "trireme/comm/world.h"

namespace trireme::comm {

/// A group of a world's ranks. local, shm and tcp are all this: they differ in how their world
/// moves bytes, and in whether the ranks of the group share memory.
class GroupBackend final : public Backend {
 public:
  /// `memory`: what the group shares; empty where its ranks do not.
  GroupBackend(std::shared_ptr<World> world, std::unique_ptr<Lane> lane, Mapping memory);
  ~GroupBackend() override;

  int rank() const override { return lane_->rank; }
  int size() const override { return lane_->size(); }
  std::shared_ptr<Pending> start(const Op& op, const core::OpInfo& info, uint64_t number) override;
  std::shared_ptr<Backend> split(const std::string& name, int color, int key,
                                 uint64_t& number) override;
  std::shared_ptr<std::byte> allocate(int64_t bytes, uint64_t& number) override;
  void step() override;
  void abort(const std::string& why) noexcept override;
  void check(const core::OpInfo& info, uint64_t number) override;
  Traffic traffic() const override;
  void note(std::string_view doing) override { world_->note(doing); }
  void set_trace(std::shared_ptr<core::Trace> trace) override {
    world_->set_trace(std::move(trace));
  }
  std::string kind() const override { return world_->kind(); }

 private:
  /// Memory that was handed out, and may be again when every rank has let go of it.
  struct Allocation {
    uint64_t id = 0;
    Mapping mapping;
    std::vector<int64_t> begin;  ///< of each rank's part, and the end
    std::weak_ptr<std::byte> user;
  };

  std::shared_ptr<Task> make_task(Job job, uint64_t number);
  /// What every rank passed, in rank order. Internal, small, blocking.
  template <class T>
  std::vector<T> exchange(const T& mine, uint64_t& number);
  /// Throws on all ranks the first sentence that one of them passed; empty: all is well.
  void agree(const std::string& problem, const std::string& what, uint64_t& number);
  Allocation* reuse(const std::vector<int64_t>& wanted, uint64_t free_everywhere);
  void trim(uint64_t free_everywhere);
  uint64_t free_here() const;

  std::shared_ptr<World> world_;
  std::unique_ptr<Lane> lane_;
  std::unique_ptr<SharedGroup> shared_;
  std::vector<Allocation> allocations_;
};

}  // namespace trireme::comm
