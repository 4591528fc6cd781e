#include "trireme/cuda/adamw.h"

#include <map>

#include "trireme/core/error.h"
#include "trireme/cuda/kernel.h"

namespace trireme::cuda {

namespace {

// As in kernels/adamw.cu.
constexpr int64_t kElems = 16384;
constexpr std::size_t kTensors = 48;
struct Segment {
  void *master, *gradient, *average, *square, *weight, *count;
  int64_t elems;
  int first_block, flags;
};
struct Segments {
  Segment all[kTensors];
  int count;
};
struct Rates {
  float beta1, beta2, epsilon, decay;
};
static_assert(sizeof(Segments) + sizeof(Rates) + 24 <= 4096, "the parameters of a kernel");

void* address_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr() : nullptr;
}

/// May four elements be loaded at a time?
bool is_aligned(const Segment& one) {
  for (const void* address : {one.master, one.gradient, one.average, one.square, one.weight})
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
  return true;
}

Segment segment_of(const AdamWTensor& one) {
  Segment segment{.master = one.master.data_ptr(),
                  .gradient = one.gradient.data_ptr(),
                  .average = one.average.data_ptr(),
                  .square = one.square.data_ptr(),
                  .weight = address_of(one.weight),
                  .count = one.count.data_ptr(),
                  .elems = one.master.numel(),
                  .first_block = 0,
                  .flags = one.decays ? 1 : 0};
  if (is_aligned(segment)) segment.flags |= 2;
  return segment;
}

/// "bf16" of "TYPE=bf16".
std::string type_name(at::ScalarType dtype) {
  return type_define(dtype).substr(std::string("TYPE=").size());
}

}  // namespace

void adamw(const std::vector<AdamWTensor>& tensors, const AdamWStep& step) {
  // Tensors of one launch have the same types.
  std::map<std::pair<at::ScalarType, at::ScalarType>, std::vector<const AdamWTensor*>> alike;
  for (const AdamWTensor& one : tensors) {
    core::check(one.master.scalar_type() == at::kFloat, "adamw: masters must be float32");
    if (one.master.numel() == 0) continue;
    alike[{one.gradient.scalar_type(),
           one.weight.defined() ? one.weight.scalar_type() : at::kFloat}]
        .push_back(&one);
  }
  const Rates rates{static_cast<float>(step.beta1), static_cast<float>(step.beta2),
                    static_cast<float>(step.epsilon), static_cast<float>(step.decay)};
  for (const auto& [types, list] : alike) {
    const Kernel kernel("adamw", "adamw",
                        {type_define(types.first), "WEIGHT=" + type_name(types.second), "PACK=4"},
                        list.front()->master);
    for (std::size_t begin = 0; begin < list.size(); begin += kTensors) {
      Segments segments{};
      int64_t blocks = 0;
      for (std::size_t i = begin; i < std::min(list.size(), begin + kTensors); ++i) {
        Segment segment = segment_of(*list[i]);
        segment.first_block = static_cast<int>(blocks);
        blocks += (segment.elems + kElems - 1) / kElems;
        segments.all[segments.count++] = segment;
      }
      kernel({.grid = {static_cast<unsigned>(blocks), 1, 1}, .block = {256, 1, 1}}, segments, rates,
             step.rate.data_ptr(), step.divisor.data_ptr(), address_of(step.skip));
    }
  }
}

}  // namespace trireme::cuda
