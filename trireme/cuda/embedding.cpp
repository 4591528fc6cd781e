#include "trireme/cuda/embedding.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>

#include "trireme/cuda/kernel.h"

namespace trireme::cuda {

at::Tensor embedding_gradient(const at::Tensor& dy, const at::Tensor& index, int64_t rows) {
  constexpr int64_t kRows = 32;  // as in the kernel
  constexpr unsigned kThreads = 128;
  const int64_t count = index.numel(), width = dy.size(1);
  at::Tensor table = at::zeros({rows, width}, dy.options());
  if (count == 0 || width == 0) return table;
  const auto [tokens, places] =
      at::sort(index.reshape({-1}).to(at::kLong), /*stable=*/true, 0, false);
  const int64_t blocks = (count + kRows - 1) / kRows;
  const at::Tensor edges = at::empty({2 * blocks, width}, dy.options().dtype(at::kFloat));
  const int pack = pack_elems(dy.scalar_type(), width, {dy.data_ptr(), table.data_ptr()});
  const std::vector<std::string> defines{type_define(dy.scalar_type()),
                                         fmt::format("PACK={}", pack)};
  const auto across = [&](int64_t elems) {
    return static_cast<unsigned>(std::min<int64_t>((elems + kThreads - 1) / kThreads, 64));
  };
  const Kernel add_rows("embedding", "embedding_rows", defines, dy),
      add_edges("embedding", "embedding_edges", defines, dy);
  add_rows(
      {.grid = {static_cast<unsigned>(blocks), across(width / pack), 1}, .block = {kThreads, 1, 1}},
      dy.data_ptr(), tokens.data_ptr(), places.data_ptr(), table.data_ptr(), edges.data_ptr(),
      count, static_cast<int>(width));
  add_edges({.grid = {static_cast<unsigned>(blocks), across(width), 1}, .block = {kThreads, 1, 1}},
            tokens.data_ptr(), edges.data_ptr(), table.data_ptr(), count, static_cast<int>(width));
  return table;
}

}  // namespace trireme::cuda
