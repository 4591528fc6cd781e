#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "trireme/compress/compressors.h"
#include "trireme/compress/cpu_compressor.h"
#include "trireme/core/error.h"

// topk: sends the k = ceil(ratio * n) elements of largest magnitude, and decodes the others to 0.
// Of equal magnitudes those with the lower index go first, and NaN and infinity count as the
// largest. The bytes, in the order of indices:
//
//   index | index | ...  uint32, k of them        value | value | ...  k of them, in the block's
//   dtype
namespace trireme::compress {

namespace {

constexpr int64_t kIndexBytes = sizeof(uint32_t);

uint32_t magnitude_bits(float x) {
  return std::bit_cast<uint32_t>(x) & std::numeric_limits<int32_t>::max();
}
uint64_t magnitude_bits(double x) {
  return std::bit_cast<uint64_t>(x) & std::numeric_limits<int64_t>::max();
}

/// Writes the `k` largest of the values at the candidates, which are in order, and returns their
/// indices. Of magnitudes that are equal to the smallest sent one, the first ones are sent.
///
///   above      bits that only sent elements have: they need not be compared with each other
template <class T, class Bits>
std::vector<uint32_t> write_largest(const T* values, const std::vector<uint32_t>& candidates,
                                    int64_t k, Bits above, char* bytes) {
  std::vector<Bits> undecided;
  int64_t left = k;
  for (const uint32_t i : candidates) {
    const Bits bits = magnitude_bits(values[i]);
    if (bits >= above)
      --left;
    else
      undecided.push_back(bits);
  }
  Bits smallest = above;
  int64_t ties = 0;  // how many magnitudes that equal the smallest are sent
  if (left > 0) {
    const auto last = undecided.begin() + left - 1;
    std::nth_element(undecided.begin(), last, undecided.end(), std::greater<>());
    smallest = *last;
    ties =
        left - std::count_if(undecided.begin(), last, [&](Bits bits) { return bits > smallest; });
  }
  std::vector<uint32_t> sent;
  sent.reserve(static_cast<std::size_t>(k));
  char* value_to = bytes + k * kIndexBytes;
  for (const uint32_t i : candidates) {
    const Bits bits = magnitude_bits(values[i]);
    if (bits < above && (bits < smallest || (bits == smallest && ties-- <= 0))) continue;
    sent.push_back(i);
    std::memcpy(value_to, values + i, sizeof(T));
    value_to += sizeof(T);
  }
  if (k > 0) std::memcpy(bytes, sent.data(), sent.size() * kIndexBytes);
  return sent;
}

class TopK final : public CpuCompressor {
 public:
  TopK(const Kernels& kernels, double ratio) : CpuCompressor(kernels), ratio_(ratio) {
    core::check(ratio > 0 && ratio <= 1, "topk: ratio = {} must be more than 0 and at most 1",
                ratio);
  }
  std::string_view name() const override { return "topk"; }

 private:
  /// The last factor keeps 0.07 of 100, which is a little more than 7 in binary, at 7.
  int64_t num_sent(int64_t count) const {
    core::check(count <= std::numeric_limits<uint32_t>::max(),
                "topk: a block of {} elements needs indices of more than 32 bits", count);
    if (count == 0) return 0;
    const double exact = ratio_ * static_cast<double>(count) * (1 - 1e-12);
    return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(exact)), 1, count);
  }
  int64_t size(int64_t count, int64_t item_bytes) const override {
    return num_sent(count) * (kIndexBytes + item_bytes);
  }

  void encode_floats(const Source& source, const BlockPlace&, char* bytes) const override;
  void decode_floats(const char* bytes, float* block, int64_t count) const override {
    decode_values(bytes, block, count);
  }
  void encode_doubles(const double* block, int64_t count, const BlockPlace&,
                      char* bytes) const override {
    std::vector<uint32_t> all(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint32_t>(i);
    write_largest(block, all, num_sent(count), std::numeric_limits<uint64_t>::max(), bytes);
  }
  void decode_doubles(const char* bytes, double* block, int64_t count) const override {
    decode_values(bytes, block, count);
  }

  template <class T>
  void decode_values(const char* bytes, T* block, int64_t count) const {
    if (count == 0) return;
    const int64_t k = num_sent(count);
    std::memset(block, 0, static_cast<std::size_t>(count) * sizeof(T));
    const char* values = bytes + k * kIndexBytes;
    for (int64_t at = 0; at < k; ++at) {
      uint32_t i = 0;
      std::memcpy(&i, bytes + at * kIndexBytes, kIndexBytes);
      if (i >= count)
        throw CommError(fmt::format("topk: index {} of a block of {} elements", i, count));
      std::memcpy(block + i, values + at * static_cast<int64_t>(sizeof(T)), sizeof(T));
    }
  }

  const double ratio_;
};

void TopK::encode_floats(const Source& source, const BlockPlace&, char* bytes) const {
  const int64_t k = num_sent(source.count);
  std::vector<uint32_t> bins(kMagnitudeBins);
  kernels_.count_magnitudes(source, bins.data());
  // The bin of the k-th largest, and how many elements there are from it on.
  uint32_t bin = kMagnitudeBins;
  int64_t found = 0;
  while (found < k) found += bins[--bin];
  std::vector<uint32_t> candidates(static_cast<std::size_t>(found));
  const float* values = source.residual != nullptr ? source.residual : source.block;
  kernels_.find_magnitudes(values, k > 0 ? source.count : 0, bin << kMagnitudeShift,
                           candidates.data());
  const auto sent = write_largest(values, candidates, k, (bin + 1) << kMagnitudeShift, bytes);
  if (source.residual == nullptr) return;
  for (const uint32_t i : sent) source.residual[i] = 0;
  // What is not finite and was not sent: there were more than k of them.
  const uint32_t infinite = magnitude_bits(std::numeric_limits<float>::infinity());
  if (k > 0 && bin >= infinite >> kMagnitudeShift)
    for (const uint32_t i : candidates)
      if (!std::isfinite(source.residual[i])) source.residual[i] = 0;
}

}  // namespace

std::unique_ptr<Compressor> make_topk(const Kernels& kernels, double ratio) {
  return std::make_unique<TopK>(kernels, ratio);
}

}  // namespace trireme::compress
