#include "trireme/cuda/norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "trireme/cuda/columns.h"
#include "trireme/cuda/kernel.h"

namespace trireme::cuda {

namespace {

constexpr unsigned kWarps = 8;  // of a block; each has a row
constexpr int64_t kMostWidth = 4096;

void* address_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr() : nullptr;
}

/// The kernels of one width: K packs of V elements per lane. Layer norm is centred, RMS norm is
/// not.
std::vector<std::string> defines_for(const at::Tensor& x, bool centred,
                                     std::vector<const void*> addresses) {
  addresses.push_back(x.data_ptr());
  const int64_t width = x.size(-1);
  const int pack = pack_elems(x.scalar_type(), width, addresses);
  const int64_t per_lane = (width + 32 * pack - 1) / (32 * pack);
  return {type_define(x.scalar_type()), fmt::format("PACK={}", pack),
          fmt::format("PACKS={}", per_lane), fmt::format("WIDTH={}", width),
          fmt::format("CENTRED={}", centred ? 1 : 0)};
}

Launch warp_per_row(int64_t rows) {
  return {.grid = {static_cast<unsigned>((rows + kWarps - 1) / kWarps), 1, 1},
          .block = {32 * kWarps, 1, 1}};
}

}  // namespace

bool can_normalize(const at::Tensor& x) {
  return x.is_cuda() && x.size(-1) > 0 && x.size(-1) <= kMostWidth;
}

NormStatistics norm(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight,
                    const at::Tensor& bias, double epsilon) {
  const int64_t rows = x.size(0);
  const auto options = x.options().dtype(at::kFloat);
  const bool centred = bias.defined();
  NormStatistics statistics{centred ? at::empty({rows}, options) : at::Tensor(),
                            at::empty({rows}, options)};
  if (rows == 0) return statistics;
  const Kernel kernel("norm", "norm_forward",
                      defines_for(x, centred, {y.data_ptr(), weight.data_ptr(), address_of(bias)}),
                      x);
  kernel(warp_per_row(rows), x.data_ptr(), weight.data_ptr(), address_of(bias), y.data_ptr(),
         address_of(statistics.mean), statistics.rstd.data_ptr(), rows,
         static_cast<float>(epsilon));
  return statistics;
}

void norm_again(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight,
                const at::Tensor& bias, const NormStatistics& statistics) {
  const int64_t rows = x.size(0);
  if (rows == 0) return;
  const Kernel kernel(
      "norm", "norm_again",
      defines_for(x, bias.defined(), {y.data_ptr(), weight.data_ptr(), address_of(bias)}), x);
  kernel(warp_per_row(rows), x.data_ptr(), weight.data_ptr(), address_of(bias), y.data_ptr(),
         address_of(statistics.mean), statistics.rstd.data_ptr(), rows);
}

NormGradients norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                            const NormStatistics& statistics, const at::Tensor& also) {
  const int64_t rows = x.size(0), width = x.size(1);
  const bool centred = statistics.mean.defined();
  NormGradients gradients{at::empty_like(x), at::empty_like(weight),
                          centred ? at::empty_like(weight) : at::Tensor()};
  if (rows == 0) {
    gradients.weight.zero_();
    if (centred) gradients.bias.zero_();
    return gradients;
  }
  // Few blocks, so that few partial sums are written; two per multiprocessor keep it busy.
  const int64_t blocks = std::min<int64_t>((rows + kWarps - 1) / kWarps, 2 * multiprocessors(x));
  const int64_t sums = centred ? 2 : 1;  // of columns: for the weight, and for the bias
  const at::Tensor parts = at::empty({sums, blocks, width}, x.options().dtype(at::kFloat));
  const Kernel kernel(
      "norm", "norm_backward",
      defines_for(x, centred,
                  {dy.data_ptr(), weight.data_ptr(), gradients.x.data_ptr(), address_of(also)}),
      x);
  kernel({.grid = {static_cast<unsigned>(blocks), 1, 1},
          .block = {32 * kWarps, 1, 1},
          .shared_bytes = static_cast<unsigned>(sums * width * 4)},
         dy.data_ptr(), x.data_ptr(), weight.data_ptr(), address_of(statistics.mean),
         statistics.rstd.data_ptr(), address_of(also), gradients.x.data_ptr(), parts[0].data_ptr(),
         parts[sums - 1].data_ptr(), rows);
  column_totals(gradients.weight, parts[0]);
  if (centred) column_totals(gradients.bias, parts[1]);
  return gradients;
}

}  // namespace trireme::cuda
