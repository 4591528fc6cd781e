#include "trireme/cuda/columns.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "trireme/cuda/kernel.h"

namespace trireme::cuda {

namespace {

constexpr int64_t kTurns = 8;  // rows of threads in a block

unsigned blocks_for(int64_t elems, int64_t per_block) {
  return static_cast<unsigned>((elems + per_block - 1) / per_block);
}

}  // namespace

void column_totals(const at::Tensor& to, const at::Tensor& parts) {
  const auto width = static_cast<int>(parts.size(1));
  if (width == 0) return;
  const Kernel kernel("columns", "column_totals", {type_define(to.scalar_type()), "PACK=1"}, parts);
  kernel({.grid = {blocks_for(width, 32), 1, 1}, .block = {32, kTurns, 1}}, parts.data_ptr(),
         to.data_ptr(), static_cast<int>(parts.size(0)), width);
}

void column_sums(const at::Tensor& to, const at::Tensor& x) {
  const int64_t rows = x.size(0), width = x.size(1);
  if (width == 0) return;
  if (rows == 0) {
    to.zero_();
    return;
  }
  const int pack = pack_elems(x.scalar_type(), width, {x.data_ptr()});
  const unsigned across = blocks_for(width, 32 * pack);
  // About eight blocks per multiprocessor, and at least a few rows each.
  const int64_t slices = std::clamp<int64_t>(8 * multiprocessors(x) / across, 1,
                                             std::max<int64_t>(1, rows / (4 * kTurns)));
  const at::Tensor parts = at::empty({slices, width}, x.options().dtype(at::kFloat));
  const Kernel kernel("columns", "column_parts",
                      {type_define(x.scalar_type()), fmt::format("PACK={}", pack)}, x);
  kernel({.grid = {across, static_cast<unsigned>(slices), 1}, .block = {32, kTurns, 1}},
         x.data_ptr(), parts.data_ptr(), rows, static_cast<int>(width));
  column_totals(to, parts);
}

}  // namespace trireme::cuda
