#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <span>
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
//
// How they are found: a sample says above which magnitude there are a few more than k elements. One
// pass over the block collects the indices of these candidates, and the k largest are chosen among
// them. If the sample was wrong, and there are fewer than k, all magnitudes are counted instead:
// the sample changes the time and never the result.
//
//   magnitudes   . . .. ...... ....|..:.:.:...:..|:::::::::::::::::
//                                  ^ guess       ^ the k-th largest
namespace trireme::compress {

namespace {

constexpr int64_t kIndexBytes = sizeof(uint32_t);

uint32_t magnitude_bits(float x) {
  return std::bit_cast<uint32_t>(x) & std::numeric_limits<int32_t>::max();
}
uint64_t magnitude_bits(double x) {
  return std::bit_cast<uint64_t>(x) & std::numeric_limits<int64_t>::max();
}

/// The least bits of a bin's magnitudes. Whatever is not finite counts as one bin, so that all of
/// it is found together.
uint32_t least_of(uint32_t bin) {
  return std::min(bin << kMagnitudeShift, magnitude_bits(std::numeric_limits<float>::infinity()));
}

/// Of the magnitudes that `bins` counts, the bin of the k-th largest.
uint32_t bin_of(int64_t k, const std::vector<uint32_t>& bins) {
  auto bin = static_cast<uint32_t>(bins.size());
  for (int64_t found = 0; found < k; found += bins[bin]) --bin;
  return bin;
}

/// What the smallest sent magnitude is, and how many that equal it are sent.
template <class Bits>
struct Last {
  Bits bits = 0;
  int64_t ties = 0;
};

/// Bins first: only the magnitudes in the bin of the k-th largest need to be put in order.
template <class Bits>
Last<Bits> find_last(const std::vector<Bits>& magnitudes, int64_t k) {
  constexpr int kShift = kMagnitudeShift + 8 * static_cast<int>(sizeof(Bits) - sizeof(uint32_t));
  std::vector<uint32_t> bins(kMagnitudeBins);
  for (const Bits bits : magnitudes) ++bins[bits >> kShift];
  const uint32_t bin = bin_of(k, bins);
  int64_t left = k;
  std::vector<Bits> undecided;
  undecided.reserve(bins[bin]);
  for (const Bits bits : magnitudes) {
    left -= bits >> kShift > bin ? 1 : 0;
    if (bits >> kShift == bin) undecided.push_back(bits);
  }
  const auto last = undecided.begin() + left - 1;
  std::nth_element(undecided.begin(), last, undecided.end(), std::greater<>());
  return {*last, left - std::count_if(undecided.begin(), last, [&](Bits b) { return b > *last; })};
}

/// Elements in the order of their indices.
template <class T>
struct Candidates {
  std::span<const uint32_t> indices;
  const T* values;
};

/// Writes the k largest of the candidates; calls `sent` with the index of each.
template <class T, class Sent>
void write_largest(const Candidates<T>& candidates, int64_t k, char* bytes, Sent sent) {
  if (k == 0) return;
  const std::size_t count = candidates.indices.size();
  std::vector<decltype(magnitude_bits(T{}))> magnitudes(count);
  for (std::size_t n = 0; n < count; ++n) magnitudes[n] = magnitude_bits(candidates.values[n]);
  auto [last, ties] = find_last(magnitudes, k);
  char* value_to = bytes + k * kIndexBytes;
  for (std::size_t n = 0; n < count; ++n) {
    if (magnitudes[n] < last || (magnitudes[n] == last && ties-- <= 0)) continue;
    std::memcpy(bytes, &candidates.indices[n], kIndexBytes);
    std::memcpy(value_to, candidates.values + n, sizeof(T));
    bytes += kIndexBytes;
    value_to += sizeof(T);
    sent(candidates.indices[n]);
  }
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
  uint32_t guess(const Source& source, int64_t k) const;
  void decode_floats(const char* bytes, float* block, int64_t count) const override {
    decode_values(bytes, block, count);
  }
  void encode_doubles(const double* block, int64_t count, const BlockPlace&,
                      char* bytes) const override {
    std::vector<uint32_t> all(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint32_t>(i);
    write_largest(Candidates<double>{all, block}, num_sent(count), bytes, [](uint32_t) {});
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

/// A magnitude that probably a few more than k elements have; 0 if the block is too small to guess.
/// Of 1024 elements the sample has 16. The number of sampled ones above the guess deviates from
/// their share by a square root, of which four are added.
uint32_t TopK::guess(const Source& source, int64_t k) const {
  constexpr int64_t kTogether = 16, kEvery = 1024, kLeast = 64 * kEvery;
  if (source.count < kLeast) return 0;
  std::vector<float> sample;
  sample.reserve(static_cast<std::size_t>(source.count / kEvery * kTogether));
  for (int64_t begin = 0; begin + kEvery <= source.count; begin += kEvery)
    for (int64_t i = begin; i < begin + kTogether; ++i)
      sample.push_back(source.block[i] + (source.residual != nullptr ? source.residual[i] : 0));
  const double share = static_cast<double>(k) * kTogether / kEvery;
  const auto wanted = static_cast<int64_t>(share + 4 * std::sqrt(share) + 4);
  const auto sampled = static_cast<int64_t>(sample.size());
  if (wanted > sampled) return 0;
  std::vector<uint32_t> bins(kMagnitudeBins);
  kernels_.count_magnitudes(sample.data(), sampled, bins.data());
  return least_of(bin_of(wanted, bins));
}

void TopK::encode_floats(const Source& source, const BlockPlace&, char* bytes) const {
  const int64_t k = num_sent(source.count);
  // Room for all elements; memory that is not written costs nothing.
  const auto room = static_cast<std::size_t>(source.count);
  const auto indices = std::make_unique_for_overwrite<uint32_t[]>(room);
  const auto values = std::make_unique_for_overwrite<float[]>(room);
  int64_t found = kernels_.find_magnitudes(source, guess(source, k), indices.get(), values.get());
  if (found < k) {
    const float* sums = source.residual != nullptr ? source.residual : source.block;
    std::vector<uint32_t> bins(kMagnitudeBins);
    kernels_.count_magnitudes(sums, source.count, bins.data());
    found = kernels_.find_magnitudes({sums, nullptr, source.count}, least_of(bin_of(k, bins)),
                                     indices.get(), values.get());
  }
  const Candidates<float> candidates{{indices.get(), static_cast<std::size_t>(found)},
                                     values.get()};
  write_largest(candidates, k, bytes, [&](uint32_t i) {
    if (source.residual != nullptr) source.residual[i] = 0;
  });
  if (source.residual == nullptr) return;
  // If more than k elements are not finite, some of them were not sent.
  for (int64_t n = 0; n < found; ++n)
    if (!std::isfinite(values[static_cast<std::size_t>(n)]))
      source.residual[indices[static_cast<std::size_t>(n)]] = 0;
}

}  // namespace

std::unique_ptr<Compressor> make_topk(const Kernels& kernels, double ratio) {
  return std::make_unique<TopK>(kernels, ratio);
}

}  // namespace trireme::compress
