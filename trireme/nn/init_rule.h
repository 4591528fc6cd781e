#pragma once

#include <cstdint>

namespace trireme::nn {

/// How a parameter is initialized. Element i of the whole parameter depends on the seed, the
/// parameter's name and i alone, so that every mesh starts from the same model.
struct InitRule {
  enum class Kind : uint8_t { Constant, Normal, Uniform };
  Kind kind = Kind::Constant;
  double scale = 0;  ///< the constant; the standard deviation; half the width around 0

  static InitRule zeros() { return {}; }
  static InitRule ones() { return {Kind::Constant, 1}; }
  static InitRule normal(double deviation) { return {Kind::Normal, deviation}; }
  static InitRule uniform(double bound) { return {Kind::Uniform, bound}; }
};

}  // namespace trireme::nn
