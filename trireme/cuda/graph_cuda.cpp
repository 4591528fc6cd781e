#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include "trireme/cuda/graph.h"

namespace trireme::cuda {

struct Graph::Recorded {
  at::cuda::CUDAGraph graph;
};

bool Graph::available() {
  return true;
}

Graph::Graph() = default;
Graph::~Graph() = default;

void Graph::capture(c10::Device device, const std::function<void()>& body) {
  const auto main = c10::cuda::getCurrentCUDAStream(device.index());
  main.synchronize();
  c10::cuda::CUDACachingAllocator::emptyCache();
  auto recorded = std::make_unique<Recorded>();
  // The default stream cannot be captured.
  const auto side = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
  {
    const c10::StreamGuard guard(side.unwrap());
    // Thread-local: what other threads do meanwhile (look whether collectives have ended, for
    // instance) is no part of the graph, and is allowed.
    recorded->graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      body();
    } catch (...) {
      try {
        recorded->graph.capture_end();
      } catch (...) {  // the first error says more
      }
      throw;
    }
    recorded->graph.capture_end();
  }
  recorded_ = std::move(recorded);
}

void Graph::replay() {
  recorded_->graph.replay();
}

DeviceMemory peak_memory(c10::Device device) {
  if (!device.is_cuda()) return {};
  using c10::CachingAllocator::StatType;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  const auto all = static_cast<std::size_t>(StatType::AGGREGATE);
  return {.allocated_bytes = stats.allocated_bytes[all].peak,
          .reserved_bytes = stats.reserved_bytes[all].peak};
}

}  // namespace trireme::cuda
