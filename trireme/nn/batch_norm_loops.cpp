#include "trireme/nn/batch_norm_loops.h"

#include <algorithm>

namespace trireme::nn {

namespace {

// The loops are plain, and the compiler vectorizes them. Each is compiled once for each kind of
// CPU, by `target` attributes. A sum has many lanes, because the compiler must not reorder it.
#define TRIREME_INLINE inline __attribute__((always_inline))

constexpr int64_t kLanes = 32;

template <class T>
TRIREME_INLINE double total(const T* lanes) {
  double sum = 0;
  for (int64_t i = 0; i < kLanes; ++i) sum += static_cast<double>(lanes[i]);
  return sum;
}

/// Adds up term(i) for i < count, in lanes.
template <class T, class Term>
TRIREME_INLINE double lane_sum(int64_t count, Term term) {
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  for (int64_t lane = 0; i < count; ++i, ++lane) lanes[lane] += term(i);
  return total(lanes);
}

/// Two passes over a block that the cache holds: its mean, then the squares of what is left. Blocks
/// are put together by Chan et al. 1979, in double.
template <class T>
TRIREME_INLINE void plane_moments_body(const T* x, int64_t count, double* mean, double* squares) {
  constexpr int64_t kBlock = 4096;
  double n = 0, m = 0, s = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    const T* const block = x + begin;
    const auto each = static_cast<double>(size);
    const double own = lane_sum<T>(size, [&](int64_t i) { return block[i]; }) / each;
    const T center = static_cast<T>(own);
    const double spread = lane_sum<T>(size, [&](int64_t i) {
      const T off = block[i] - center;
      return off * off;
    });
    const double apart = own - m;
    s += spread + apart * apart * n * each / (n + each);
    m += apart * each / (n + each);
    n += each;
  }
  *mean = m;
  *squares = s;
}

template <class T>
TRIREME_INLINE void plane_forward_body(const typename BatchNormLoops<T>::Forward& of,
                                       const typename BatchNormLoops<T>::Affine& by) {
  const T mean = *by.mean, scale = *by.scale, bias = *by.bias;
  const T *const x = of.x, *const r = of.residual;
  T* const y = of.y;
  const auto each = [&](auto value) {
    if (of.relu)
      for (int64_t i = 0; i < of.count; ++i) y[i] = std::max(value(i), T(0));
    else
      for (int64_t i = 0; i < of.count; ++i) y[i] = value(i);
  };
  if (r != nullptr)
    each([=](int64_t i) { return (x[i] - mean) * scale + bias + r[i]; });
  else
    each([=](int64_t i) { return (x[i] - mean) * scale + bias; });
}

template <class T>
TRIREME_INLINE void plane_sums_body(const typename BatchNormLoops<T>::Backward& of, const T* mean,
                                    double* sum, double* product) {
  const T *x = of.x, *g = of.dy;
  const T m = *mean;
  if (of.y != nullptr && of.out != nullptr) {
    for (int64_t i = 0; i < of.count; ++i) of.out[i] = of.y[i] > T(0) ? g[i] : T(0);
    g = of.out;
  } else if (of.y != nullptr) {
    const T* const y = of.y;
    *sum = lane_sum<T>(of.count, [=](int64_t i) { return y[i] > T(0) ? g[i] : T(0); });
    *product =
        lane_sum<T>(of.count, [=](int64_t i) { return y[i] > T(0) ? g[i] * (x[i] - m) : T(0); });
    return;
  }
  *sum = lane_sum<T>(of.count, [=](int64_t i) { return g[i]; });
  *product = lane_sum<T>(of.count, [=](int64_t i) { return g[i] * (x[i] - m); });
}

template <class T>
TRIREME_INLINE void plane_input_body(const typename BatchNormLoops<T>::Backward& of,
                                     const typename BatchNormLoops<T>::Slope& by) {
  const T mean = *by.mean, scale = *by.scale, offset = *by.offset, slope = *by.slope;
  const T *const x = of.x, *const dy = of.dy, *const y = of.y;
  T* const dx = of.out;
  if (y != nullptr)
    for (int64_t i = 0; i < of.count; ++i) {
      const T g = y[i] > T(0) ? dy[i] : T(0);
      dx[i] = (g - offset - (x[i] - mean) * slope) * scale;
    }
  else
    for (int64_t i = 0; i < of.count; ++i) dx[i] = (dy[i] - offset - (x[i] - mean) * slope) * scale;
}

template <class T>
TRIREME_INLINE void row_moments_body(const T* x, int64_t count, int64_t channels, T* mean,
                                     T* squares) {
  std::fill(mean, mean + channels, T(0));
  std::fill(squares, squares + channels, T(0));
  for (int64_t row = 0; row < count; ++row)
    for (int64_t c = 0; c < channels; ++c) mean[c] += x[row * channels + c];
  const T share = T(1) / static_cast<T>(count);
  for (int64_t c = 0; c < channels; ++c) mean[c] *= share;
  for (int64_t row = 0; row < count; ++row)
    for (int64_t c = 0; c < channels; ++c) {
      const T off = x[row * channels + c] - mean[c];
      squares[c] += off * off;
    }
}

template <class T>
TRIREME_INLINE void row_forward_body(const typename BatchNormLoops<T>::Forward& of,
                                     const typename BatchNormLoops<T>::Affine& by) {
  const T *const mean = by.mean, *const scale = by.scale, *const bias = by.bias;
  const int64_t channels = of.channels;
  for (int64_t row = 0; row < of.count; ++row) {
    const T* const x = of.x + row * channels;
    const T* const r = of.residual == nullptr ? nullptr : of.residual + row * channels;
    T* const y = of.y + row * channels;
    if (r != nullptr)
      for (int64_t c = 0; c < channels; ++c) y[c] = (x[c] - mean[c]) * scale[c] + bias[c] + r[c];
    else
      for (int64_t c = 0; c < channels; ++c) y[c] = (x[c] - mean[c]) * scale[c] + bias[c];
    if (of.relu)
      for (int64_t c = 0; c < channels; ++c) y[c] = std::max(y[c], T(0));
  }
}

template <class T>
TRIREME_INLINE void row_sums_body(const typename BatchNormLoops<T>::Backward& of, const T* mean,
                                  T* sum, T* product) {
  const int64_t channels = of.channels;
  std::fill(sum, sum + channels, T(0));
  std::fill(product, product + channels, T(0));
  for (int64_t row = 0; row < of.count; ++row) {
    const T* const x = of.x + row * channels;
    const T* g = of.dy + row * channels;
    const T* const y = of.y == nullptr ? nullptr : of.y + row * channels;
    if (y != nullptr && of.out != nullptr) {
      T* const out = of.out + row * channels;
      for (int64_t c = 0; c < channels; ++c) out[c] = y[c] > T(0) ? g[c] : T(0);
      g = out;
    } else if (y != nullptr) {
      for (int64_t c = 0; c < channels; ++c) {
        const T passed = y[c] > T(0) ? g[c] : T(0);
        sum[c] += passed;
        product[c] += passed * (x[c] - mean[c]);
      }
      continue;
    }
    for (int64_t c = 0; c < channels; ++c) {
      sum[c] += g[c];
      product[c] += g[c] * (x[c] - mean[c]);
    }
  }
}

template <class T>
TRIREME_INLINE void row_input_body(const typename BatchNormLoops<T>::Backward& of,
                                   const typename BatchNormLoops<T>::Slope& by) {
  const int64_t channels = of.channels;
  for (int64_t row = 0; row < of.count; ++row) {
    const T *const x = of.x + row * channels, *const dy = of.dy + row * channels;
    T* const dx = of.out + row * channels;
    if (of.y != nullptr) {
      const T* const y = of.y + row * channels;
      for (int64_t c = 0; c < channels; ++c) {
        const T g = y[c] > T(0) ? dy[c] : T(0);
        dx[c] = (g - by.offset[c] - (x[c] - by.mean[c]) * by.slope[c]) * by.scale[c];
      }
    } else {
      for (int64_t c = 0; c < channels; ++c)
        dx[c] = (dy[c] - by.offset[c] - (x[c] - by.mean[c]) * by.slope[c]) * by.scale[c];
    }
  }
}

/// The eight loops compiled with one `target`.
#define TRIREME_LOOPS(NAME, TARGET)                                                              \
  template <class T>                                                                             \
  struct NAME {                                                                                  \
    using Loops = BatchNormLoops<T>;                                                             \
    using Forward = typename Loops::Forward;                                                     \
    using Backward = typename Loops::Backward;                                                   \
    using Affine = typename Loops::Affine;                                                       \
    using Slope = typename Loops::Slope;                                                         \
    TARGET static void plane_moments(const T* x, int64_t count, double* mean, double* squares) { \
      plane_moments_body(x, count, mean, squares);                                               \
    }                                                                                            \
    TARGET static void plane_forward(const Forward& of, const Affine& by) {                      \
      plane_forward_body<T>(of, by);                                                             \
    }                                                                                            \
    TARGET static void plane_sums(const Backward& of, const T* mean, double* sum,                \
                                  double* product) {                                             \
      plane_sums_body<T>(of, mean, sum, product);                                                \
    }                                                                                            \
    TARGET static void plane_input(const Backward& of, const Slope& by) {                        \
      plane_input_body<T>(of, by);                                                               \
    }                                                                                            \
    TARGET static void row_moments(const T* x, int64_t count, int64_t channels, T* mean,         \
                                   T* squares) {                                                 \
      row_moments_body(x, count, channels, mean, squares);                                       \
    }                                                                                            \
    TARGET static void row_forward(const Forward& of, const Affine& by) {                        \
      row_forward_body<T>(of, by);                                                               \
    }                                                                                            \
    TARGET static void row_sums(const Backward& of, const T* mean, T* sum, T* product) {         \
      row_sums_body<T>(of, mean, sum, product);                                                  \
    }                                                                                            \
    TARGET static void row_input(const Backward& of, const Slope& by) {                          \
      row_input_body<T>(of, by);                                                                 \
    }                                                                                            \
    static constexpr Loops all() {                                                               \
      return {plane_moments, plane_forward, plane_sums, plane_input,                             \
              row_moments,   row_forward,   row_sums,   row_input};                              \
    }                                                                                            \
  };

TRIREME_LOOPS(PlainLoops, )

#if defined(__x86_64__)
TRIREME_LOOPS(Avx2Loops, __attribute__((target("avx2,fma"))))
TRIREME_LOOPS(
    Avx512Loops,
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512"))))

template <class T>
BatchNormLoops<T> pick() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
    return Avx512Loops<T>::all();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Avx2Loops<T>::all();
  return PlainLoops<T>::all();
}
#else
template <class T>
BatchNormLoops<T> pick() {
  return PlainLoops<T>::all();
}
#endif

}  // namespace

template <class T>
const BatchNormLoops<T>& batch_norm_loops() {
  static const BatchNormLoops<T> loops = pick<T>();
  return loops;
}

template const BatchNormLoops<float>& batch_norm_loops<float>();
template const BatchNormLoops<double>& batch_norm_loops<double>();

}  // namespace trireme::nn
