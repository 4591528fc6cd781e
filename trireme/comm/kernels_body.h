// The reduction kernels, written once with gcc's vector types and compiled for several kinds of
// CPU. Each of kernels_base.cpp, kernels_avx2.cpp and kernels_avx512.cpp (x86-64) and
// kernels_plain.cpp (all others) includes its vectors_*.h and this file, and then defines what is
// only declared here: stream and end_of_stream. Read in vectors.h why nothing of std:: is called.
#pragma once

#include "trireme/comm/kernels.h"
#include "trireme/comm/vectors.h"

namespace trireme::comm {
namespace {

using core::DType;
using core::ReduceOp;

/// A non-temporal store; `to` is aligned to a register.
void stream(char* to, Register value);

/// Orders such stores before every later one.
void end_of_stream();

// How an element is stored and computed in, as Half and BFloat say for 16 bits.
template <class Stored, class Computed>
struct Converted {
  using Item = Stored;
  using Number = Computed;
  template <int N>
  static Vec<Computed, N> widen(Vec<Stored, N> v) {
    return convert<Computed, Stored, N>(v);
  }
  template <int N>
  static Vec<Stored, N> narrow(Vec<Computed, N> v) {
    return convert<Stored, Computed, N>(v);
  }
};

template <class T>
using Unconverted = Converted<T, T>;

/// Integers whose sum may not fit: the mean of 200 and 100 as uint8 is 150.
template <class T>
using Wide = Converted<T, int64_t>;

struct Sum {
  template <class V>
  static V combine(V a, V b) {
    return a + b;
  }
  template <class V, class Number>
  static V finish(V sum, Number) {
    return sum;
  }
};

struct Mean : Sum {
  template <class V, class Number>
  static V finish(V sum, Number divisor) {
    return sum / divisor;
  }
};

/// The mean of int64, which has nothing wider: adds as unsigned (it may wrap), divides as signed.
struct WrappingMean : Mean {
  template <class V>
  static V combine(V a, V b) {
    using Unsigned = Vec<uint64_t, sizeof(V) / sizeof(uint64_t)>;
    return bits_as<V>(bits_as<Unsigned>(a) + bits_as<Unsigned>(b));
  }
};

struct Product : Sum {
  template <class V>
  static V combine(V a, V b) {
    return a * b;
  }
};

// A comparison with NaN is false, so `b` wins where it is one; a != a keeps `a` where it is.
struct Max : Sum {
  template <class V>
  static V combine(V a, V b) {
    return (a > b) | (a != a) ? a : b;
  }
};

struct Min : Sum {
  template <class V>
  static V combine(V a, V b) {
    return (a < b) | (a != a) ? a : b;
  }
};

/// One reduction: where from, where to, over how many elements.
struct ReduceArgs {
  void* const* out;
  int num_out;
  const void* const* in;
  int num_in;
  int64_t count;
  int64_t divisor;  ///< of a mean
};

/// Reduces kVectors vectors of N elements at element `i`. kIn and kOut are the numbers of sources
/// and results where they are known (the pointers then stay in registers), else 0.
template <class D, class Op, int kIn, int kOut, int N, int kVectors>
inline __attribute__((always_inline)) void step(char* const* out, int num_out,
                                                const char* const* in, int num_in, int64_t i,
                                                typename D::Number divisor) {
  using Items = Vec<typename D::Item, N>;
  using Numbers = Vec<typename D::Number, N>;
  const int64_t at = i * static_cast<int64_t>(sizeof(typename D::Item));
  constexpr int64_t kStride = sizeof(Items);
  const int sources = kIn ? kIn : num_in;
  const int results = kOut ? kOut : num_out;

  Numbers acc[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v)
    acc[v] = D::template widen<N>(load<Items>(in[0] + at + v * kStride));
  for (int s = 1; s < sources; ++s) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      acc[v] = Op::combine(acc[v], D::template widen<N>(load<Items>(in[s] + at + v * kStride)));
  }
  Items result[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) result[v] = D::template narrow<N>(Op::finish(acc[v], divisor));
  for (int k = 0; k < results; ++k) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(out[k] + at + v * kStride, result[v]);
  }
}

/// Four vectors at a time, then one, then single elements.
template <class D, class Op, int kIn, int kOut>
__attribute__((noinline)) void reduce_all(const ReduceArgs& args) {
  constexpr int N = kVectorBytes / sizeof(typename D::Number);
  constexpr int kVectors = 4;
  const auto divisor = static_cast<typename D::Number>(args.divisor);
  const char* known_in[kIn ? kIn : 1];
  char* known_out[kOut ? kOut : 1];
  for (int s = 0; s < kIn; ++s) known_in[s] = static_cast<const char*>(args.in[s]);
  for (int k = 0; k < kOut; ++k) known_out[k] = static_cast<char*>(args.out[k]);
  const char* const* in = kIn ? known_in : reinterpret_cast<const char* const*>(args.in);
  char* const* out = kOut ? known_out : reinterpret_cast<char* const*>(args.out);
  const int num_in = args.num_in, num_out = args.num_out;
  const int64_t count = args.count;

  int64_t i = 0;
  for (; i + kVectors * N <= count; i += kVectors * N)
    step<D, Op, kIn, kOut, N, kVectors>(out, num_out, in, num_in, i, divisor);
  for (; i + N <= count; i += N) step<D, Op, kIn, kOut, N, 1>(out, num_out, in, num_in, i, divisor);
  for (; i < count; ++i) step<D, Op, kIn, kOut, 1, 1>(out, num_out, in, num_in, i, divisor);
}

/// The most frequent shapes: all-reduce (n to n) and reduce-scatter (n to 1) of a few ranks.
template <class D, class Op>
void reduce_shapes(const ReduceArgs& args) {
  const int in = args.num_in, out = args.num_out;
  if (in == 2 && out == 2) return reduce_all<D, Op, 2, 2>(args);
  if (in == 2 && out == 1) return reduce_all<D, Op, 2, 1>(args);
  if (in == 3 && out == 3) return reduce_all<D, Op, 3, 3>(args);
  if (in == 4 && out == 4) return reduce_all<D, Op, 4, 4>(args);
  if (in == 3 && out == 1) return reduce_all<D, Op, 3, 1>(args);
  if (in == 4 && out == 1) return reduce_all<D, Op, 4, 1>(args);
  if (in == 3 && out == 2) return reduce_all<D, Op, 3, 2>(args);
  if (in == 4 && out == 2) return reduce_all<D, Op, 4, 2>(args);
  if (out == 1) return reduce_all<D, Op, 0, 1>(args);
  if (out == 2) return reduce_all<D, Op, 0, 2>(args);
  reduce_all<D, Op, 0, 0>(args);
}

template <class D, class Op>
void reduce_few(const ReduceArgs& args) {
  if (args.num_in == 2 && args.num_out == 1) return reduce_all<D, Op, 2, 1>(args);
  reduce_all<D, Op, 0, 0>(args);
}

/// Floats: every operation computes in the same type.
template <class D>
void reduce_float(ReduceOp op, const ReduceArgs& args) {
  switch (op) {
    case ReduceOp::Sum: return reduce_few<D, Sum>(args);
    case ReduceOp::Mean: return reduce_few<D, Mean>(args);
    case ReduceOp::Max: return reduce_few<D, Max>(args);
    case ReduceOp::Min: return reduce_few<D, Min>(args);
    case ReduceOp::Product: return reduce_few<D, Product>(args);
  }
}

/// Integers: sums and products as Unsigned (they wrap), comparisons as Signed, means in MeanIn.
template <class Signed, class Unsigned, class MeanIn, class MeanOp>
void reduce_integer(ReduceOp op, const ReduceArgs& args) {
  switch (op) {
    case ReduceOp::Sum: return reduce_few<Unconverted<Unsigned>, Sum>(args);
    case ReduceOp::Mean: return reduce_few<MeanIn, MeanOp>(args);
    case ReduceOp::Max: return reduce_few<Unconverted<Signed>, Max>(args);
    case ReduceOp::Min: return reduce_few<Unconverted<Signed>, Min>(args);
    case ReduceOp::Product: return reduce_few<Unconverted<Unsigned>, Product>(args);
  }
}

void reduce_job(DType dtype, ReduceOp op, const ReduceArgs& args) {
  if (dtype == DType::Float32 && op == ReduceOp::Sum)
    return reduce_shapes<Unconverted<float>, Sum>(args);
  switch (dtype) {
    case DType::Float32: return reduce_float<Unconverted<float>>(op, args);
    case DType::Float64: return reduce_float<Unconverted<double>>(op, args);
    case DType::Float16: return reduce_float<Half>(op, args);
    case DType::BFloat16: return reduce_float<BFloat>(op, args);
    case DType::Int32: return reduce_integer<int32_t, uint32_t, Wide<int32_t>, Mean>(op, args);
    case DType::Int64:
      return reduce_integer<int64_t, uint64_t, Unconverted<int64_t>, WrappingMean>(op, args);
    case DType::UInt8: return reduce_integer<uint8_t, uint8_t, Wide<uint8_t>, Mean>(op, args);
    case DType::Other: __builtin_trap();
  }
}

void reduce(DType dtype, ReduceOp op, void* const* out, int num_out, const void* const* in,
            int num_in, int64_t count) {
  reduce_job(dtype, op, {out, num_out, in, num_in, count, num_in});
}

void fold(DType dtype, ReduceOp op, void* acc, const void* in, int64_t count) {
  const void* sources[] = {acc, in};
  reduce_job(dtype, op == ReduceOp::Mean ? ReduceOp::Sum : op, {&acc, 1, sources, 2, count, 1});
}

void divide(DType dtype, void* x, int64_t divisor, int64_t count) {
  const void* source = x;
  reduce_job(dtype, ReduceOp::Mean, {&x, 1, &source, 1, count, divisor});
}

/// Copies the middle by `put(to, register)` at aligned addresses, the two ends with memcpy.
template <class Put>
inline __attribute__((always_inline)) void copy_by(char* to, const char* from, int64_t bytes,
                                                   Put put) {
  constexpr int64_t kBytes = kVectorBytes;
  if (bytes < 4 * kBytes) {
    __builtin_memcpy(to, from, static_cast<std::size_t>(bytes));
    return;
  }
  const int64_t head = -reinterpret_cast<intptr_t>(to) & (kBytes - 1);
  __builtin_memcpy(to, from, static_cast<std::size_t>(head));
  int64_t at = head;
  for (; at + 4 * kBytes <= bytes; at += 4 * kBytes) {
    const auto a = load<Register>(from + at), b = load<Register>(from + at + kBytes);
    const auto c = load<Register>(from + at + 2 * kBytes);
    const auto d = load<Register>(from + at + 3 * kBytes);
    put(to + at, a);
    put(to + at + kBytes, b);
    put(to + at + 2 * kBytes, c);
    put(to + at + 3 * kBytes, d);
  }
  __builtin_memcpy(to + at, from + at, static_cast<std::size_t>(bytes - at));
}

void copy(void* to, const void* from, int64_t bytes) {
  copy_by(static_cast<char*>(to), static_cast<const char*>(from), bytes,
          [](char* place, Register value) { store(place, value); });
}

void copy_streaming(void* to, const void* from, int64_t bytes) {
  copy_by(static_cast<char*>(to), static_cast<const char*>(from), bytes,
          [](char* place, Register value) { stream(place, value); });
  end_of_stream();
}

}  // namespace
}  // namespace trireme::comm
