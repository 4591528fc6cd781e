#include <algorithm>
#include <array>
#include <cstring>

#include "trireme/compress/compressors.h"
#include "trireme/compress/cpu_compressor.h"

// onebit: what is sent is described in onebit_body.h. The bytes:
//
//   mean of x >= 0 | mean of x < 0 | ...  two for 4096 elements, in the block's dtype
//   bits                                  element i is bit i % 8 of byte i / 8
//
// float64 is summed one element after the other.
namespace trireme::compress {

namespace {

class OneBit final : public CpuCompressor {
 public:
  explicit OneBit(const Kernels& kernels) : CpuCompressor(kernels) {}
  std::string_view name() const override { return "onebit"; }

 private:
  static int64_t mean_bytes(int64_t count, int64_t item_bytes) {
    return (count + kOneBitBlock - 1) / kOneBitBlock * 2 * item_bytes;
  }
  int64_t size(int64_t count, int64_t item_bytes) const override {
    return mean_bytes(count, item_bytes) + (count + 7) / 8;
  }

  void encode_floats(const Source& source, const BlockPlace&, char* bytes) const override {
    kernels_.encode_onebit(source, bytes, bytes + mean_bytes(source.count, sizeof(float)));
  }
  void decode_floats(const char* bytes, float* block, int64_t count) const override {
    kernels_.decode_onebit(bytes, bytes + mean_bytes(count, sizeof(float)), block, count);
  }

  void encode_doubles(const double* block, int64_t count, const BlockPlace&,
                      char* bytes) const override {
    char* bits = bytes + mean_bytes(count, sizeof(double));
    std::fill_n(bits, (count + 7) / 8, 0);
    for (int64_t begin = 0; begin < count; begin += kOneBitBlock, bytes += 2 * sizeof(double)) {
      std::array<double, 2> sums = {}, counts = {};
      for (int64_t i = begin; i < std::min(begin + kOneBitBlock, count); ++i) {
        const std::size_t side = block[i] < 0 ? 1 : 0;
        sums[side] += block[i];
        counts[side] += 1;
        if (side == 0) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << i % 8);
      }
      for (std::size_t side : {0U, 1U})
        if (counts[side] > 0) sums[side] /= counts[side];
      std::memcpy(bytes, sums.data(), sizeof sums);
    }
  }
  void decode_doubles(const char* bytes, double* block, int64_t count) const override {
    const char* bits = bytes + mean_bytes(count, sizeof(double));
    for (int64_t begin = 0; begin < count; begin += kOneBitBlock, bytes += 2 * sizeof(double)) {
      std::array<double, 2> means;
      std::memcpy(means.data(), bytes, sizeof means);
      for (int64_t i = begin; i < std::min(begin + kOneBitBlock, count); ++i)
        block[i] = (bits[i / 8] >> i % 8 & 1) != 0 ? means[0] : means[1];
    }
  }
};

}  // namespace

std::unique_ptr<Compressor> make_onebit(const Kernels& kernels) {
  return std::make_unique<OneBit>(kernels);
}

}  // namespace trireme::compress
