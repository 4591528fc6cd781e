// Vectors of numbers, written with gcc's vector types, for kernels that are compiled for several
// kinds of CPU. Include one of vectors_base.h, vectors_avx2.h and vectors_avx512.h, which define
// kVectorBytes and the conversions of halves.
//
// Such kernels are compiled for CPUs that may differ from the one that runs them. An inline
// function or a template of std:: that they emitted could be the copy that the linker keeps for the
// whole program, so everything here has internal linkage and nothing of std:: is called.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme::comm {
namespace {

template <class T, int N>
struct VecOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <class T>
struct VecOf<T, 1> {
  using type = T;
};

/// N numbers in a register. One number is a plain T, so that the same code handles vectors and the
/// tail.
template <class T, int N>
using Vec = typename VecOf<T, N>::type;
using Register = Vec<char, kVectorBytes>;

/// A V at any address, over memory of any type. (memcpy would say the same, but gcc 12 sends 16
/// bytes of it through two integer registers.)
template <class V>
struct Unaligned {
  typedef V type __attribute__((aligned(1), may_alias));
};

template <class V>
inline V load(const char* from) {
  return *reinterpret_cast<const typename Unaligned<V>::type*>(from);
}

template <class V>
inline void store(char* to, V v) {
  *reinterpret_cast<typename Unaligned<V>::type*>(to) = v;
}

template <class To, class From>
inline To bits_as(From from) {
  return __builtin_bit_cast(To, from);
}

template <class To, class From, int N>
inline Vec<To, N> convert(Vec<From, N> v) {
  if constexpr (N == 1)
    return static_cast<To>(v);
  else
    return __builtin_convertvector(v, Vec<To, N>);
}

/// N halves as floats, exactly; a NaN becomes quiet and keeps its sign and payload.
template <int N>
Vec<float, N> half_to_float(Vec<uint16_t, N> v);

/// N floats as halves, to nearest even; too large is infinite, a NaN as above.
template <int N>
Vec<uint16_t, N> float_to_half(Vec<float, N> v);

// How an element is stored (Item) and what it is computed in (Number).
struct Half {
  using Item = uint16_t;
  using Number = float;
  template <int N>
  static Vec<float, N> widen(Vec<uint16_t, N> v) {
    return half_to_float<N>(v);
  }
  template <int N>
  static Vec<uint16_t, N> narrow(Vec<float, N> v) {
    return float_to_half<N>(v);
  }
};

/// bfloat16 is the upper half of a float. Adding just under half of the last place that is kept,
/// and one more where that place is odd, rounds to nearest even; a NaN is made quiet instead.
struct BFloat {
  using Item = uint16_t;
  using Number = float;
  template <int N>
  static Vec<float, N> widen(Vec<uint16_t, N> v) {
    return bits_as<Vec<float, N>>(convert<uint32_t, uint16_t, N>(v) << 16);
  }
  template <int N>
  static Vec<uint16_t, N> narrow(Vec<float, N> v) {
    const auto bits = bits_as<Vec<uint32_t, N>>(v);
    const Vec<uint32_t, N> rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    const Vec<uint32_t, N> quiet = (bits >> 16) | 0x40;
    return convert<uint16_t, uint32_t, N>(v != v ? quiet : rounded);
  }
};

}  // namespace
}  // namespace trireme::comm
