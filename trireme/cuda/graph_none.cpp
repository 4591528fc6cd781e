#include "trireme/core/error.h"
#include "trireme/cuda/graph.h"

namespace trireme::cuda {

struct Graph::Recorded {};

bool Graph::available() {
  return false;
}

Graph::Graph() = default;
Graph::~Graph() = default;

void Graph::capture(c10::Device, const std::function<void()>&) {
  throw MisuseError("CUDA graphs need a libtorch for CUDA; this one is for the CPU");
}

void Graph::replay() {}

DeviceMemory peak_memory(c10::Device) {
  return {};
}

}  // namespace trireme::cuda
