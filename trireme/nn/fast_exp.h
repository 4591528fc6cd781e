#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace trireme::nn {

/// e^x, where x is clamped to [-87, 87]: 2^n e^r with |r| <= ln 2 / 2, and e^r by a polynomial.
inline __attribute__((always_inline)) float exp_of(float x) {
  constexpr float kLog2e = 1.44269504088896341F, kHigh = 0.693359375F, kLow = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 x 2^23: adding it rounds to a whole number
  x = x > 87.0F ? 87.0F : x;
  x = x < -87.0F ? -87.0F : x;
  const float shifted = x * kLog2e + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kHigh) - n * kLow;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  int32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits - 0x4B400000 + 127) << 23;  // 2^n
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}

inline __attribute__((always_inline)) double exp_of(double x) {
  return std::exp(x);
}

/// 1 / (1 + e^-x). In float it is 0 where it would be below 1e-26: products with such numbers
/// become subnormal, and a matrix product with one subnormal number in twenty takes ten times as
/// long.
inline __attribute__((always_inline)) float logistic_of(float x) {
  const float e = exp_of(-x);
  return e > 1e26F ? 0.0F : 1.0F / (1.0F + e);
}

inline __attribute__((always_inline)) double logistic_of(double x) {
  return 1.0 / (1.0 + exp_of(-x));
}

}  // namespace trireme::nn
