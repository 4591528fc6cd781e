#include "trireme/nn/batch_norm_math.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>

#include "trireme/nn/batch_norm_loops.h"
#include "trireme/nn/parallel_loop.h"

namespace trireme::nn::batch_norm {

namespace {

/// How the elements of a tensor lie: one plane for each sample and channel, or rows of all
/// channels.
struct Shape {
  explicit Shape(const at::Tensor& x)
      : samples(x.size(0)),
        channels(x.size(1)),
        pixels(samples * channels == 0 ? 0 : x.numel() / (samples * channels)),
        in_rows(pixels == 1 || !x.is_contiguous()) {}
  int64_t samples, channels, pixels;
  bool in_rows;
  int64_t rows() const { return samples * pixels; }
};

constexpr int64_t kGrain = 16384;    // elements that are worth a thread
constexpr int64_t kRowBlock = 4096;  // elements of rows that a core's cache holds twice

at::Tensor in_format(const at::Tensor& x, at::MemoryFormat format) {
  return x.contiguous(format);
}

bool has_loops(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble);
}

/// Calls body(T()) with the type of the elements.
template <class Body>
void by_type(const at::Tensor& x, Body body) {
  if (x.scalar_type() == at::kFloat)
    body(float());
  else
    body(double());
}

/// Calls body(channel, offset of its plane) for all planes, a channel's on one thread and in order.
template <class Body>
void for_planes(const Shape& shape, Body body) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, shape.rows()));
  parallel_loop(0, shape.channels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t channel = begin; channel < end; ++channel)
      for (int64_t sample = 0; sample < shape.samples; ++sample)
        body(channel, (sample * shape.channels + channel) * shape.pixels);
  });
}

int64_t rows_in_block(const Shape& shape) {
  return std::max<int64_t>(16, kRowBlock / shape.channels);
}
int64_t num_blocks(const Shape& shape) {
  return (shape.rows() + rows_in_block(shape) - 1) / rows_in_block(shape);
}

/// Calls body(block, first row, rows) for all blocks. They do not depend on the number of threads.
template <class Body>
void for_blocks(const Shape& shape, Body body) {
  const int64_t size = rows_in_block(shape);
  const int64_t grain = std::max<int64_t>(1, kGrain / (size * shape.channels));
  parallel_loop(0, num_blocks(shape), grain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      body(block, block * size, std::min(size, shape.rows() - block * size));
  });
}

/// Numbers per channel as the loops want them.
at::Tensor as_type_of(const at::Tensor& x, const at::Tensor& numbers) {
  return numbers.to(x.scalar_type()).contiguous();
}

/// Numbers per channel, to compute with [rows, channels, ...].
at::Tensor per_channel(const at::Tensor& numbers, const at::Tensor& x) {
  std::vector<int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[1] = -1;
  return numbers.view(shape);
}

std::vector<int64_t> dims_but_channels(const at::Tensor& x) {
  std::vector<int64_t> dims = {0};
  for (int64_t dim = 2; dim < x.dim(); ++dim) dims.push_back(dim);
  return dims;
}

/// In float32 at least.
at::Tensor widened(const at::Tensor& x) {
  return x.to(at::promote_types(x.scalar_type(), at::kFloat));
}

/// Adds the moments of a part to those of a channel.
void add(double* total, double count, double mean, double squares) {
  const double all = total[0] + count, apart = mean - total[1];
  total[2] += squares + apart * apart * total[0] * count / all;
  total[1] += apart * count / all;
  total[0] = all;
}

template <class T>
void compute_moments(const at::Tensor& x, double* means, double* squares) {
  const Shape shape(x);
  const auto& loops = batch_norm_loops<T>();
  const T* const from = x.data_ptr<T>();
  const auto channels = static_cast<std::size_t>(shape.channels);
  std::vector<double> totals(3 * channels, 0);
  if (!shape.in_rows) {
    for_planes(shape, [&](int64_t channel, int64_t at) {
      double mean, spread;
      loops.plane_moments(from + at, shape.pixels, &mean, &spread);
      add(&totals[3 * static_cast<std::size_t>(channel)], static_cast<double>(shape.pixels), mean,
          spread);
    });
  } else {
    std::vector<T> parts(static_cast<std::size_t>(num_blocks(shape)) * 2 * channels);
    for_blocks(shape, [&](int64_t block, int64_t row, int64_t rows) {
      T* const part = &parts[static_cast<std::size_t>(block) * 2 * channels];
      loops.row_moments(from + row * shape.channels, rows, shape.channels, part, part + channels);
    });
    for (int64_t block = 0, row = 0; row < shape.rows(); ++block, row += rows_in_block(shape)) {
      const T* const part = &parts[static_cast<std::size_t>(block) * 2 * channels];
      const auto rows = static_cast<double>(std::min(rows_in_block(shape), shape.rows() - row));
      for (std::size_t c = 0; c < channels; ++c)
        add(&totals[3 * c], rows, static_cast<double>(part[c]),
            static_cast<double>(part[channels + c]));
    }
  }
  for (std::size_t c = 0; c < channels; ++c) {
    means[c] = totals[3 * c + 1];
    squares[c] = totals[3 * c + 2];
  }
}

}  // namespace

Moments::Moments(const at::Tensor& all)
    : count(all.narrow(0, 0, 1)),
      mean(all.narrow(0, 1, all.size(0) / 2)),
      squares(all.narrow(0, 1 + all.size(0) / 2, all.size(0) / 2)) {}

at::Tensor moments_of(const at::Tensor& given) {
  const int64_t channels = given.size(1);
  const auto options = given.options().dtype(at::kDouble);
  at::Tensor all = at::zeros({1 + 2 * channels}, options);
  if (given.numel() == 0) return all;
  const auto count = static_cast<double>(given.numel() / channels);
  if (!has_loops(given)) {
    const auto [var, mean] = at::var_mean(widened(given), dims_but_channels(given), 0);
    return at::cat(
        {at::full({1}, count, options), mean.to(at::kDouble), var.to(at::kDouble) * count});
  }
  const at::Tensor x = in_format(given, given.suggest_memory_format());
  auto* const numbers = all.data_ptr<double>();
  numbers[0] = count;
  by_type(x, [&](auto zero) {
    compute_moments<decltype(zero)>(x, numbers + 1, numbers + 1 + channels);
  });
  return all;
}

at::Tensor merged(const at::Tensor& parts) {
  const int64_t channels = parts.size(1) / 2;
  const at::Tensor counts = parts.narrow(1, 0, 1), means = parts.narrow(1, 1, channels),
                   squares = parts.narrow(1, 1 + channels, channels);
  const at::Tensor count = counts.sum(0);
  const at::Tensor mean = (counts * means).sum(0) / count.clamp_min(1);
  const at::Tensor spread = (squares + counts * (means - mean).square()).sum(0);
  return at::cat({count, mean, spread});
}

at::Tensor normalized(const at::Tensor& given, const Affine& by, const at::Tensor& residual,
                      bool relu) {
  if (!has_loops(given)) {
    const at::Tensor x = widened(given);
    const auto as_wide = [&](const at::Tensor& one) {
      return per_channel(one.to(x.scalar_type()), x);
    };
    at::Tensor y = (x - as_wide(by.mean)) * as_wide(by.scale) + as_wide(by.bias);
    if (residual.defined()) y = y + residual;
    if (relu) y = y.clamp_min(0);
    return y.to(given.scalar_type());
  }
  const auto format = given.suggest_memory_format();
  const at::Tensor x = in_format(given, format);
  const at::Tensor r =
      residual.defined() ? in_format(residual.to(x.scalar_type()), format) : at::Tensor();
  at::Tensor y = at::empty_like(x);
  const at::Tensor mean = as_type_of(x, by.mean), scale = as_type_of(x, by.scale),
                   bias = as_type_of(x, by.bias);
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    const Shape shape(x);
    const auto& loops = batch_norm_loops<T>();
    const T *const from = x.data_ptr<T>(), *const add = r.defined() ? r.data_ptr<T>() : nullptr;
    T* const to = y.data_ptr<T>();
    const T *const m = mean.data_ptr<T>(), *const s = scale.data_ptr<T>(),
                   *const b = bias.data_ptr<T>();
    const auto part = [&](int64_t at, int64_t count) {
      return typename BatchNormLoops<T>::Forward{
          from + at, add == nullptr ? nullptr : add + at, to + at, count, shape.channels, relu};
    };
    if (shape.in_rows)
      for_blocks(shape, [&](int64_t, int64_t row, int64_t rows) {
        loops.row_forward(part(row * shape.channels, rows), {m, s, b});
      });
    else
      for_planes(shape, [&](int64_t c, int64_t at) {
        loops.plane_forward(part(at, shape.pixels), {m + c, s + c, b + c});
      });
  });
  return y;
}

at::Tensor OutputGradient::pass() {
  if (output.defined()) dy = at::threshold_backward(dy, output, 0);
  output = at::Tensor();
  return dy;
}

at::Tensor gradient_sums(const at::Tensor& given, OutputGradient& gradient, const at::Tensor& mean,
                         Passed passed) {
  const int64_t channels = given.size(1);
  if (!has_loops(given) || given.numel() == 0) {
    const at::Tensor x = widened(given), g = widened(gradient.pass());
    const auto dims = dims_but_channels(x);
    const at::Tensor off = x - per_channel(mean.to(x.scalar_type()), x);
    return at::stack({g.sum(dims).to(at::kDouble), (g * off).sum(dims).to(at::kDouble)});
  }
  const auto format = given.suggest_memory_format();
  const at::Tensor x = in_format(given, format);
  gradient.dy = in_format(gradient.dy, format);
  const bool keeps = passed == Passed::Keep && gradient.output.defined();
  const at::Tensor kept = keeps ? at::empty_like(x) : at::Tensor(), m = as_type_of(x, mean);
  at::Tensor sums = at::zeros({2, channels}, x.options().dtype(at::kDouble));
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    const Shape shape(x);
    const auto& loops = batch_norm_loops<T>();
    const T *const from = x.data_ptr<T>(), *const dy = gradient.dy.data_ptr<T>(),
                   *const y = gradient.output.defined() ? gradient.output.data_ptr<T>() : nullptr;
    T* const out = keeps ? kept.data_ptr<T>() : nullptr;
    auto* const sum = sums.data_ptr<double>();
    const auto part = [&](int64_t at, int64_t count) {
      return typename BatchNormLoops<T>::Backward{
          from + at, dy + at, y == nullptr ? nullptr : y + at, out == nullptr ? nullptr : out + at,
          count,     channels};
    };
    if (!shape.in_rows) {
      for_planes(shape, [&](int64_t c, int64_t at) {
        double own, product;
        loops.plane_sums(part(at, shape.pixels), m.data_ptr<T>() + c, &own, &product);
        sum[c] += own;
        sum[channels + c] += product;
      });
      return;
    }
    const auto width = static_cast<std::size_t>(2 * channels);
    std::vector<T> parts(static_cast<std::size_t>(num_blocks(shape)) * width);
    for_blocks(shape, [&](int64_t block, int64_t row, int64_t rows) {
      T* const own = &parts[static_cast<std::size_t>(block) * width];
      loops.row_sums(part(row * channels, rows), m.data_ptr<T>(), own, own + channels);
    });
    for (std::size_t i = 0; i < parts.size(); ++i) sum[i % width] += static_cast<double>(parts[i]);
  });
  if (keeps) {
    gradient.dy = kept;
    gradient.output = at::Tensor();
  }
  return sums;
}

at::Tensor input_gradient(const at::Tensor& given, const OutputGradient& gradient,
                          const Slope& by) {
  if (!has_loops(given) || given.numel() == 0) {
    OutputGradient all = gradient;
    const at::Tensor x = widened(given), g = widened(all.pass());
    const auto as_wide = [&](const at::Tensor& one) {
      return per_channel(one.to(x.scalar_type()), x);
    };
    const at::Tensor dx =
        (g - as_wide(by.offset) - (x - as_wide(by.mean)) * as_wide(by.slope)) * as_wide(by.scale);
    return dx.to(given.scalar_type());
  }
  const auto format = given.suggest_memory_format();
  const at::Tensor x = in_format(given, format), dy = in_format(gradient.dy, format);
  at::Tensor dx = at::empty_like(x);
  const at::Tensor mean = as_type_of(x, by.mean), scale = as_type_of(x, by.scale),
                   offset = as_type_of(x, by.offset), slope = as_type_of(x, by.slope);
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    const Shape shape(x);
    const auto& loops = batch_norm_loops<T>();
    const T *const from = x.data_ptr<T>(), *const g = dy.data_ptr<T>(),
                   *const y = gradient.output.defined() ? gradient.output.data_ptr<T>() : nullptr;
    T* const to = dx.data_ptr<T>();
    const typename BatchNormLoops<T>::Slope all{mean.data_ptr<T>(), scale.data_ptr<T>(),
                                                offset.data_ptr<T>(), slope.data_ptr<T>()};
    const auto part = [&](int64_t at, int64_t count) {
      return typename BatchNormLoops<T>::Backward{
          from + at, g + at, y == nullptr ? nullptr : y + at, to + at, count, shape.channels};
    };
    if (shape.in_rows)
      for_blocks(shape, [&](int64_t, int64_t row, int64_t rows) {
        loops.row_input(part(row * shape.channels, rows), all);
      });
    else
      for_planes(shape, [&](int64_t c, int64_t at) {
        loops.plane_input(part(at, shape.pixels),
                          {all.mean + c, all.scale + c, all.offset + c, all.slope + c});
      });
  });
  return dx;
}

}  // namespace trireme::nn::batch_norm
