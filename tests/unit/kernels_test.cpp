// Every kernel against arithmetic written out by hand: one element at a time, 16-bit floats through
// double, no code shared with trireme/comm.
#include "trireme/comm/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "trireme/core/error.h"

namespace trireme::comm {
namespace {

using core::DType;
using core::ReduceOp;

constexpr DType kDTypes[] = {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16,
                             DType::Int32,   DType::Int64,   DType::UInt8};
constexpr ReduceOp kOps[] = {ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::Min,
                             ReduceOp::Product};

std::vector<const Kernels*> kinds() {
  std::vector<const Kernels*> found;
  for (const char* name : {"base", "avx2", "avx512"})
    if (cpu_supports(name)) found.push_back(&kernels_named(name));
  return found;
}

/// What a 16-bit float is made of; the value of its bits and the bits nearest to a value.
struct Format {
  int mantissa_bits, bias;

  uint16_t infinity() const {
    return static_cast<uint16_t>(0x7FFF >> mantissa_bits << mantissa_bits);
  }
  bool is_nan(uint16_t bits) const { return (bits & 0x7FFF) > infinity(); }

  double value(uint16_t bits) const {
    const int exponent = (bits & 0x7FFF) >> mantissa_bits;
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    double magnitude = std::ldexp(mantissa, 1 - bias - mantissa_bits);
    if (exponent > 0) {
      magnitude = std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
    }
    if ((bits & 0x7FFF) >= infinity()) magnitude = is_nan(bits) ? NAN : INFINITY;
    return bits & 0x8000 ? -magnitude : magnitude;
  }

  uint16_t nearest(double x) const {
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    if (std::isnan(x)) return static_cast<uint16_t>(sign | infinity() | 1 << (mantissa_bits - 1));
    const int smallest = 1 - bias;
    const int exponent = x == 0 || std::isinf(x) ? smallest : std::max(std::ilogb(x), smallest);
    // In units of the last place; rint rounds to even. A carry moves into the exponent by itself.
    const double units = std::rint(std::ldexp(std::abs(x), mantissa_bits - exponent));
    const double bits = units + std::ldexp(exponent - smallest, mantissa_bits);
    return static_cast<uint16_t>(sign | static_cast<int>(std::min<double>(bits, infinity())));
  }
};
constexpr Format kHalf{10, 15}, kBFloat{7, 127};

template <class T>
T reduce_floats(ReduceOp op, const std::vector<T>& x) {
  T result = x[0];
  for (std::size_t s = 1; s < x.size(); ++s) {
    if (op == ReduceOp::Sum || op == ReduceOp::Mean) result = result + x[s];
    if (op == ReduceOp::Product) result = result * x[s];
    if (std::isnan(result)) continue;
    if (op == ReduceOp::Max && !(result > x[s])) result = x[s];
    if (op == ReduceOp::Min && !(result < x[s])) result = x[s];
  }
  return op == ReduceOp::Mean ? result / static_cast<T>(x.size()) : result;
}

template <class T>
T reduce_integers(ReduceOp op, const std::vector<T>& x) {
  uint64_t sum = 0, product = 1;
  T most = x[0], least = x[0];
  for (const T each : x) {
    sum += static_cast<uint64_t>(int64_t{each});
    product *= static_cast<uint64_t>(int64_t{each});
    most = std::max(most, each);
    least = std::min(least, each);
  }
  switch (op) {
    case ReduceOp::Sum: return static_cast<T>(sum);
    case ReduceOp::Mean:
      return static_cast<T>(static_cast<int64_t>(sum) / static_cast<int64_t>(x.size()));
    case ReduceOp::Max: return most;
    case ReduceOp::Min: return least;
    case ReduceOp::Product: return static_cast<T>(product);
  }
  return 0;
}

/// Element `i` of all sources as T.
template <class T>
std::vector<T> gather(const std::vector<std::string>& sources, int64_t i) {
  std::vector<T> x;
  for (const auto& source : sources) {
    x.emplace_back();
    std::memcpy(&x.back(), source.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  }
  return x;
}

template <class T>
std::string bytes_of(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string reduce_16(Format format, ReduceOp op, const std::vector<uint16_t>& bits) {
  std::vector<float> x;
  for (const uint16_t each : bits) x.push_back(static_cast<float>(format.value(each)));
  return bytes_of(format.nearest(double{reduce_floats(op, x)}));
}

std::string expected(DType dtype, ReduceOp op, const std::vector<std::string>& in, int64_t i) {
  switch (dtype) {
    case DType::Float32: return bytes_of(reduce_floats(op, gather<float>(in, i)));
    case DType::Float64: return bytes_of(reduce_floats(op, gather<double>(in, i)));
    case DType::Float16: return reduce_16(kHalf, op, gather<uint16_t>(in, i));
    case DType::BFloat16: return reduce_16(kBFloat, op, gather<uint16_t>(in, i));
    case DType::Int32: return bytes_of(reduce_integers(op, gather<int32_t>(in, i)));
    case DType::Int64: return bytes_of(reduce_integers(op, gather<int64_t>(in, i)));
    case DType::UInt8: return bytes_of(reduce_integers(op, gather<uint8_t>(in, i)));
    case DType::Other: break;
  }
  return "";
}

bool is_nan(DType dtype, const std::string& bytes) {
  const auto as = [&]<class T>(T value) {
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::Float32: return std::isnan(as(float{}));
    case DType::Float64: return std::isnan(as(double{}));
    case DType::Float16: return kHalf.is_nan(as(uint16_t{}));
    case DType::BFloat16: return kBFloat.is_nan(as(uint16_t{}));
    default: return false;
  }
}

/// A float for source s, element i: mostly ordinary, with the awkward ones sprinkled in. At most
/// one source of an element is NaN, since the payload of a sum of several is not specified.
double awkward(int s, int num_in, int64_t i, std::mt19937& random) {
  const double x = std::normal_distribution<double>(0, 3)(random);
  switch (i % 13) {
    case 1: return s % 2 ? 0.0 : -0.0;
    case 3: return s % 2 ? INFINITY : x;
    case 5: return s == i % num_in ? NAN : x;
    case 7: return s % 2 ? INFINITY : -INFINITY;
    case 9: return std::ldexp(x, -20);  // subnormal as a half
    case 11: return x * 60000;          // overflows a half
    default: return x;
  }
}

std::string element(DType dtype, int s, int num_in, int64_t i, std::mt19937& random) {
  const double x = awkward(s, num_in, i, random);
  switch (dtype) {
    case DType::Float32: return bytes_of(static_cast<float>(i % 13 == 9 ? std::ldexp(x, -110) : x));
    case DType::Float64: return bytes_of(i % 13 == 9 ? std::ldexp(x, -1020) : x);
    case DType::Float16: return bytes_of(kHalf.nearest(x));
    case DType::BFloat16: return bytes_of(kBFloat.nearest(x));
    case DType::Int32: return bytes_of(static_cast<int32_t>(random()));
    case DType::Int64: return bytes_of(static_cast<int64_t>(uint64_t{random()} << 32 | random()));
    default: return bytes_of(static_cast<uint8_t>(random()));
  }
}

std::vector<std::string> make_sources(DType dtype, int num_in, int64_t count) {
  std::mt19937 random(static_cast<unsigned>(num_in * 1000 + static_cast<int>(dtype)));
  std::vector<std::string> sources(static_cast<std::size_t>(num_in));
  for (int64_t i = 0; i < count; ++i)
    for (int s = 0; s < num_in; ++s)
      sources[static_cast<std::size_t>(s)] += element(dtype, s, num_in, i, random);
  return sources;
}

constexpr std::size_t kGuard = 80;
enum class Placing { Apart, InPlace };

/// The results of one call; fails the test where a guard byte was touched.
std::vector<std::string> run(const Kernels& kernel, DType dtype, ReduceOp op, int num_out,
                             std::vector<std::string> sources, Placing place) {
  const std::size_t shift =
      place == Placing::InPlace ? 1 : 0;  // misaligned for every dtype but uint8
  const std::size_t bytes = sources[0].size();
  std::vector<std::string> results(static_cast<std::size_t>(num_out), std::string(bytes, 'r'));
  std::vector<const void*> in;
  std::vector<void*> out;
  for (auto& source : sources) {
    source = std::string(shift, 'g') + source + std::string(kGuard, 'g');
    in.push_back(source.data() + shift);
  }
  for (std::size_t k = 0; k < results.size(); ++k) {
    results[k] += std::string(kGuard, 'g');
    out.push_back(place == Placing::InPlace ? sources[k].data() + shift : results[k].data());
  }
  kernel.reduce(dtype, op, out.data(), num_out, in.data(), static_cast<int>(in.size()),
                static_cast<int64_t>(bytes) / item_bytes(dtype));
  for (std::size_t k = 0; k < results.size(); ++k) {
    if (place == Placing::InPlace) results[k] = sources[k].substr(shift);
    EXPECT_EQ(results[k].substr(bytes), std::string(kGuard, 'g')) << "wrote past the end";
    results[k].resize(bytes);
  }
  return results;
}

void expect_right(DType dtype, ReduceOp op, int num_in, int64_t count) {
  const auto sources = make_sources(dtype, num_in, count);
  const auto item = static_cast<std::size_t>(item_bytes(dtype));
  std::string first;  // the bits of the first kind, which all others must give
  for (const Kernels* kernel : kinds()) {
    for (int num_out = 1; num_out <= num_in; ++num_out) {
      for (const Placing place : {Placing::Apart, Placing::InPlace}) {
        for (const auto& result : run(*kernel, dtype, op, num_out, sources, place)) {
          if (first.empty()) first = result;
          ASSERT_EQ(result, first) << kernel->name << " " << to_string(dtype) << " "
                                   << to_string(op) << " " << num_in << " to " << num_out;
        }
      }
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    const std::string got = first.substr(static_cast<std::size_t>(i) * item, item);
    const std::string want = expected(dtype, op, sources, i);
    if (is_nan(dtype, want) && is_nan(dtype, got)) continue;
    ASSERT_EQ(got, want) << to_string(dtype) << " " << to_string(op) << " of " << num_in << " at "
                         << i;
  }
}

TEST(Kernels, EveryDTypeAndOperationMatchesTheHandWrittenOneOnEveryCpu) {
  for (const DType dtype : kDTypes)
    for (const ReduceOp op : kOps)
      for (int num_in = 1; num_in <= 9; ++num_in)
        for (const int64_t count : {0, 1, 7, 16, 33, 1000}) expect_right(dtype, op, num_in, count);
}

TEST(Kernels, FoldThenDivideIsTheMeanOfTwo) {
  for (const Kernels* kernel : kinds()) {
    for (const DType dtype : {DType::Float32, DType::Float64}) {
      const auto sources = make_sources(dtype, 2, 100);
      std::string acc = sources[0];
      kernel->fold(dtype, ReduceOp::Mean, acc.data(), sources[1].data(), 100);
      kernel->divide(dtype, acc.data(), 2, 100);
      EXPECT_EQ(acc, run(*kernel, dtype, ReduceOp::Mean, 1, sources, Placing::Apart)[0]);
    }
    int32_t numbers[] = {7, -7, 8, -1};
    kernel->divide(DType::Int32, numbers, 2, 4);
    EXPECT_EQ(std::vector<int32_t>(numbers, numbers + 4), (std::vector<int32_t>{3, -3, 4, 0}));
  }
}

TEST(Kernels, MeanOfBytesDoesNotWrap) {
  const std::vector<std::string> sources = {"\xC8", "\xFA", "\x96"};  // 200, 250, 150
  for (const Kernels* kernel : kinds())
    EXPECT_EQ(run(*kernel, DType::UInt8, ReduceOp::Mean, 1, sources, Placing::Apart)[0], "\xC8");
}

TEST(Kernels, All65536ValuesOfSixteenBitsComeBack) {
  std::vector<uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const std::string bytes(reinterpret_cast<const char*>(all.data()), all.size() * 2);
  for (const auto& [dtype, format] :
       {std::pair{DType::Float16, kHalf}, {DType::BFloat16, kBFloat}}) {
    for (const Kernels* kernel : kinds()) {
      for (const auto& sources : {std::vector{bytes}, std::vector{bytes, bytes}}) {
        const std::string result =
            run(*kernel, dtype, ReduceOp::Max, 1, sources, Placing::Apart)[0];
        for (std::size_t i = 0; i < all.size(); ++i) {
          uint16_t got, want = all[i];
          std::memcpy(&got, result.data() + i * 2, 2);
          if (format.is_nan(want)) want |= static_cast<uint16_t>(1 << (format.mantissa_bits - 1));
          ASSERT_EQ(got, want) << kernel->name << " " << to_string(dtype);
        }
      }
    }
  }
}

/// A product of two 16-bit floats is exact in fp32, so it reaches roundings of every kind: ties,
/// subnormal results, overflow.
TEST(Kernels, RoundsToNearestEvenOverASweepOfProducts) {
  std::mt19937 random(7);
  constexpr int64_t kCount = 400'000;
  for (const auto& [dtype, format] :
       {std::pair{DType::Float16, kHalf}, {DType::BFloat16, kBFloat}}) {
    std::vector<uint16_t> a, b;
    while (a.size() < kCount) {
      a.push_back(static_cast<uint16_t>(random()));
      b.push_back(static_cast<uint16_t>(random()));
      if (format.is_nan(a.back()) || format.is_nan(b.back())) a.pop_back(), b.pop_back();
    }
    for (const Kernels* kernel : kinds()) {
      auto acc = a;
      kernel->fold(dtype, ReduceOp::Product, acc.data(), b.data(), kCount);
      for (std::size_t i = 0; i < a.size(); ++i) {
        const auto exact = static_cast<float>(format.value(a[i]) * format.value(b[i]));
        if (format.is_nan(acc[i]) && std::isnan(exact)) continue;
        ASSERT_EQ(acc[i], format.nearest(double{exact})) << kernel->name << " " << exact;
      }
    }
  }
}

TEST(Kernels, CopiesEverySizeAtEveryAlignmentAndNothingElse) {
  std::string source(1500, '\0');
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i * 31 + i / 256);
  for (const Kernels* kernel : kinds()) {
    for (const auto copy : {kernel->copy, kernel->copy_streaming}) {
      for (std::size_t bytes = 0; bytes < 1200; bytes += bytes < 300 ? 1 : 37) {
        for (const std::size_t shift : {0, 1, 8, 17, 63}) {
          std::string to(1400, 'g');
          copy(to.data() + shift, source.data() + (bytes + shift) % 5, static_cast<int64_t>(bytes));
          std::string want(1400, 'g');
          want.replace(shift, bytes, source, (bytes + shift) % 5, bytes);
          ASSERT_EQ(to, want) << kernel->name << " " << bytes << " bytes at +" << shift;
        }
      }
    }
  }
}

TEST(Kernels, RefusesANameItDoesNotKnow) {
  try {
    kernels_named("sse9");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "this CPU has no kernels 'sse9'; TRIREME_CPU must be base, avx2 or avx512");
  }
  EXPECT_TRUE(cpu_supports(kernels().name));
}

}  // namespace
}  // namespace trireme::comm
