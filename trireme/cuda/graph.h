#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace trireme::cuda {

/// Work on a GPU that is issued once and then repeated by a single call: a CUDA graph. A repetition
/// uses the same memory and the same arguments, so what changes from one to the next must be in
/// tensors that stay where they are. Host code of the body runs only once.
///
/// graph_cuda.cpp needs libtorch's headers for CUDA. With another libtorch, graph_none.cpp takes
/// its place, and `available` is false.
class Graph {
 public:
  static bool available();

  Graph();
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Records what `body` issues; nothing of it runs yet. The memory that the body takes is kept for
  /// the graph; free memory of earlier work is given back to the GPU first. Must not be called
  /// while a thread issues work that synchronizes with this one. Throws if the body waits for the
  /// GPU, which cannot be recorded.
  void capture(c10::Device device, const std::function<void()>& body);

  /// Runs it once more, on the current stream.
  void replay();

 private:
  struct Recorded;
  std::unique_ptr<Recorded> recorded_;
};

/// The most memory that tensors have taken from a GPU at a time, and the most that libtorch has
/// taken for them, in bytes; 0 without CUDA.
struct DeviceMemory {
  int64_t allocated_bytes = 0, reserved_bytes = 0;
};
DeviceMemory peak_memory(c10::Device device);

}  // namespace trireme::cuda
