#include "trireme/cuda/squares.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <map>

#include "trireme/cuda/kernel.h"

namespace trireme::cuda {

namespace {

// As in kernels/squares.cu.
constexpr int64_t kElems = 32768;
constexpr std::size_t kTensors = 96;
struct SquareSegment {
  void* x;
  int64_t elems;
  int first_block, flags;
};
struct SquareSegments {
  SquareSegment all[kTensors];
  int count;
};

int64_t blocks_of(const at::Tensor& tensor) {
  return (tensor.numel() + kElems - 1) / kElems;
}

}  // namespace

at::Tensor sum_of_squares(const std::vector<Squared>& tensors, c10::Device device) {
  std::map<at::ScalarType, std::vector<const Squared*>> alike;
  int64_t blocks = 0;
  for (const Squared& one : tensors) {
    if (one.tensor.numel() == 0) continue;
    alike[one.tensor.scalar_type()].push_back(&one);
    blocks += blocks_of(one.tensor);
  }
  const auto options = at::TensorOptions().dtype(at::kDouble).device(device);
  if (blocks == 0) return at::zeros({}, options);
  const at::Tensor parts = at::empty({blocks}, options), total = at::empty({}, options);
  double* next = parts.data_ptr<double>();
  for (const auto& [dtype, list] : alike) {
    const int pack = 16 / static_cast<int>(c10::elementSize(dtype));
    const Kernel kernel("squares", "square_parts",
                        {type_define(dtype), fmt::format("PACK={}", pack)}, parts);
    for (std::size_t begin = 0; begin < list.size(); begin += kTensors) {
      SquareSegments segments{};
      int64_t here = 0;
      for (std::size_t i = begin; i < std::min(list.size(), begin + kTensors); ++i) {
        const at::Tensor& x = list[i]->tensor;
        const bool aligned = reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0;
        segments.all[segments.count++] = {x.data_ptr(), x.numel(), static_cast<int>(here),
                                          (list[i]->counts ? 1 : 0) | (aligned ? 2 : 0)};
        here += blocks_of(x);
      }
      kernel({.grid = {static_cast<unsigned>(here), 1, 1}, .block = {256, 1, 1}}, segments, next);
      next += here;
    }
  }
  const Kernel kernel("squares", "square_total", {type_define(at::kFloat), "PACK=1"}, parts);
  kernel({.grid = {1, 1, 1}, .block = {1024, 1, 1}}, parts.data_ptr<double>(),
         total.data_ptr<double>(), static_cast<int>(blocks));
  return total;
}

}  // namespace trireme::cuda
