#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/comm/nccl/calls.h"
#include "trireme/comm/nccl/event_pool.h"
#include "trireme/comm/task.h"

namespace trireme::comm::nccl {

/// A started op on the GPU, as its channel and the watcher see it. It keeps no tensor of the
/// caller: gathered weights must be freed when their `Work` is, not when the watcher next looks.
///
///   Queued ──launch──> Launched ──the event `done` has come──> Finished
///      └──the world failed──> Cancelled
///   Captured: it went into a CUDA graph; there is nothing to wait for
struct Flight {
  enum class State : uint8_t { Queued, Launched, Finished, Captured, Cancelled };

  Flight(core::OpInfo its_info, uint64_t its_number, std::shared_ptr<EventPool> its_events)
      : info(its_info),
        number(its_number),
        events(std::move(its_events)),
        ready(events->take()),
        done(events->take()) {}
  ~Flight() {
    if (capturing) return;  // a recording in a graph may not be asked or repeated
    events->give_back(std::move(ready));
    events->give_back(std::move(done));
  }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  core::OpInfo info;
  uint64_t number = 0;
  bool capturing = false;  ///< goes into a CUDA graph
  std::vector<Call> calls = {};
  std::byte* in = nullptr;
  std::byte* out = nullptr;
  const std::shared_ptr<EventPool> events;
  c10::Event ready;  ///< recorded on the caller's stream: the input is there
  c10::Event done;   ///< recorded on the channel's stream, behind the calls
  std::atomic<State> state{State::Queued};

  /// The same op without data among the hosts, which compares, records and names who is missing.
  std::shared_ptr<Task> sentinel = {};
  std::vector<at::Tensor> sentinel_data = {};
  /// Looks at what the sentinel brought, once it is done. Reports a mismatch to the world.
  std::function<void()> compare = {};

  std::chrono::nanoseconds timeout{};
  std::chrono::nanoseconds waited{0};  ///< since the GPU reached it
};

}  // namespace trireme::comm::nccl
