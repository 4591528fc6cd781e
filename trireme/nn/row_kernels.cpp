#include "trireme/nn/row_kernels.h"

#include "trireme/nn/fast_exp.h"

namespace trireme::nn {

namespace {

// The loops are plain, and the compiler vectorizes them. Each is compiled once for each kind of
// CPU, by `target` attributes. Only sums are written with vectors, because the compiler may not
// change the order of additions.
#define TRIREME_INLINE inline __attribute__((always_inline))

template <class T>
struct Lanes {
  static constexpr int kCount = 64 / sizeof(T);
  typedef T Vector __attribute__((vector_size(64), aligned(alignof(T)), may_alias));
};

/// The sum of f(i) over a row, in a fixed order: lanes first. `whole` gives the values of a vector
/// of lanes from i on.
template <class T, class Whole, class Single>
TRIREME_INLINE T sum_over(int64_t width, Whole whole, Single single) {
  using Vector = typename Lanes<T>::Vector;
  constexpr int kLanes = Lanes<T>::kCount;
  Vector first = {}, second = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    whole(i, first);
    whole(i + kLanes, second);
  }
  first += second;
  T sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += first[lane];
  for (; i < width; ++i) sum += single(i);
  return sum;
}

template <class T>
TRIREME_INLINE void rms_norm_body(const RmsNormRows<T>& in, T* y, T* rstd, int64_t begin,
                                  int64_t end) {
  using Vector = typename Lanes<T>::Vector;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = in.x + row * in.width;
    T* out = y + row * in.width;
    const T squares = sum_over<T>(
        in.width,
        [&](int64_t i, Vector & sum) __attribute__((always_inline)) {
          const Vector v = *reinterpret_cast<const Vector*>(x + i);
          sum += v * v;
        },
        [&](int64_t i) __attribute__((always_inline)) { return x[i] * x[i]; });
    const T r = 1 / std::sqrt(squares / static_cast<T>(in.width) + in.epsilon);
    rstd[row] = r;
    for (int64_t i = 0; i < in.width; ++i) out[i] = x[i] * r * in.weight[i];
  }
}

template <class T>
TRIREME_INLINE void rms_norm_backward_body(const RmsNormRows<T>& in, const T* rstd, const T* dy,
                                           const T* also, T* dx, T* dweight, int64_t begin,
                                           int64_t end) {
  using Vector = typename Lanes<T>::Vector;
  const int64_t width = in.width;
  const T* g = in.weight;
  for (int64_t row = begin; row < end; ++row) {
    const T *x = in.x + row * width, *by = dy + row * width;
    T* to = dx + row * width;
    const T r = rstd[row];
    const T products = sum_over<T>(
        width,
        [&](int64_t i, Vector & sum) __attribute__((always_inline)) {
          sum += *reinterpret_cast<const Vector*>(x + i) *
                 *reinterpret_cast<const Vector*>(by + i) * *reinterpret_cast<const Vector*>(g + i);
        },
        [&](int64_t i) __attribute__((always_inline)) { return x[i] * by[i] * g[i]; });
    // h mean(w h) = x r^2 mean(dy g x)
    const T slope = r * r * r * products / static_cast<T>(width);
    if (also != nullptr) {
      const T* more = also + row * width;
      for (int64_t i = 0; i < width; ++i) to[i] = more[i] + r * by[i] * g[i] - slope * x[i];
    } else {
      for (int64_t i = 0; i < width; ++i) to[i] = r * by[i] * g[i] - slope * x[i];
    }
    for (int64_t i = 0; i < width; ++i) dweight[i] += r * by[i] * x[i];
  }
}

template <class T>
TRIREME_INLINE void swiglu_body(const T* z, T* h, int64_t width, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T *gate = z + row * 2 * width, *up = gate + width;
    T* out = h + row * width;
    for (int64_t i = 0; i < width; ++i) out[i] = gate[i] * logistic_of(gate[i]) * up[i];
  }
}

template <class T>
TRIREME_INLINE void swiglu_backward_body(const T* z, const T* dh, T* dz, int64_t width,
                                         int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T *gate = z + row * 2 * width, *up = gate + width, *by = dh + row * width;
    T* __restrict dgate = dz + row * 2 * width, * __restrict dup = dgate + width;
    for (int64_t i = 0; i < width; ++i) {
      const T s = logistic_of(gate[i]);
      dgate[i] = by[i] * up[i] * s * (1 + gate[i] * (1 - s));
      dup[i] = by[i] * gate[i] * s;
    }
  }
}

template <class T>
TRIREME_INLINE void turn_body(const TurnedRows<T>& how, const T* from, T* to, T sign, int64_t begin,
                              int64_t end) {
  const int64_t half = how.head / 2, width = (how.turned + how.others) * how.head;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t angle = row % how.positions * half;
    const T *cosines = how.cosines + angle, *sines = how.sines + angle;
    for (int64_t head = 0; head < how.turned; ++head) {
      const T* x = from + row * width + head * how.head;
      T* y = to + row * width + head * how.head;
      // Each pair is read before it is written, so that both may be the same memory.
      if (how.neighbours) {
#pragma GCC ivdep
        for (int64_t i = 0; i < half; ++i) {
          const T a = x[2 * i], b = x[2 * i + 1], c = cosines[i], s = sign * sines[i];
          y[2 * i] = a * c - b * s;
          y[2 * i + 1] = b * c + a * s;
        }
      } else {
#pragma GCC ivdep
        for (int64_t i = 0; i < half; ++i) {
          const T a = x[i], b = x[i + half], c = cosines[i], s = sign * sines[i];
          y[i] = a * c - b * s;
          y[i + half] = b * c + a * s;
        }
      }
    }
    if (from != to) {
      const int64_t done = row * width + how.turned * how.head;
      std::memcpy(to + done, from + done,
                  static_cast<std::size_t>(how.others * how.head) * sizeof(T));
    }
  }
}

/// The kernels for one kind of CPU, as a struct of functions that have its `target`.
#define TRIREME_KERNELS(Name, TARGET)                                                              \
  template <class T>                                                                               \
  struct Name {                                                                                    \
    TARGET static void rms_norm(const RmsNormRows<T>& in, T* y, T* rstd, int64_t begin,            \
                                int64_t end) {                                                     \
      rms_norm_body(in, y, rstd, begin, end);                                                      \
    }                                                                                              \
    TARGET static void rms_norm_backward(const RmsNormRows<T>& in, const T* rstd, const T* dy,     \
                                         const T* also, T* dx, T* dweight, int64_t begin,          \
                                         int64_t end) {                                            \
      rms_norm_backward_body(in, rstd, dy, also, dx, dweight, begin, end);                         \
    }                                                                                              \
    TARGET static void swiglu(const T* z, T* h, int64_t width, int64_t begin, int64_t end) {       \
      swiglu_body(z, h, width, begin, end);                                                        \
    }                                                                                              \
    TARGET static void swiglu_backward(const T* z, const T* dh, T* dz, int64_t width,              \
                                       int64_t begin, int64_t end) {                               \
      swiglu_backward_body(z, dh, dz, width, begin, end);                                          \
    }                                                                                              \
    TARGET static void turn(const TurnedRows<T>& how, const T* from, T* to, T sign, int64_t begin, \
                            int64_t end) {                                                         \
      turn_body(how, from, to, sign, begin, end);                                                  \
    }                                                                                              \
    static constexpr RowKernels<T> kAll{rms_norm, rms_norm_backward, swiglu, swiglu_backward,      \
                                        turn};                                                     \
  };

TRIREME_KERNELS(Plain, )
#if defined(__x86_64__)
TRIREME_KERNELS(Avx2, __attribute__((target("avx2,fma"))))
TRIREME_KERNELS(
    Avx512,
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512"))))

template <class T>
RowKernels<T> pick() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
    return Avx512<T>::kAll;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Avx2<T>::kAll;
  return Plain<T>::kAll;
}
#else
template <class T>
RowKernels<T> pick() {
  return Plain<T>::kAll;
}
#endif

}  // namespace

template <>
const RowKernels<float>& row_kernels() {
  static const RowKernels<float> kernels = pick<float>();
  return kernels;
}
template <>
const RowKernels<double>& row_kernels() {
  static const RowKernels<double> kernels = pick<double>();
  return kernels;
}

}  // namespace trireme::nn
