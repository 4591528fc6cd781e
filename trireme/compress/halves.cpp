#include <bit>
#include <cmath>
#include <vector>

#include "trireme/compress/compressors.h"
#include "trireme/compress/cpu_compressor.h"

// fp16 and bf16. Rounding is IEEE's: to nearest even, and what is too large becomes infinite (65520
// and more in fp16), so that training sees it and skips or stops. A NaN stays NaN.
namespace trireme::compress {

namespace {

/// Rounds to odd: what lies between two floats becomes the one with the odd last bit. Rounding
/// the result once more, to fewer bits, then gives what rounding once would have given.
float round_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  if (nearest == x || std::isnan(x)) return nearest;
  auto bits = std::bit_cast<uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(x)) --bits;  // toward zero
  return std::bit_cast<float>(bits | 1);
}

class Halves final : public CpuCompressor {
 public:
  struct Format {
    const char* name;
    void (*encode)(const Source& source, char* halves);
    void (*decode)(const char* halves, float* block, int64_t count);
  };
  Halves(const Kernels& kernels, const Format& format) : CpuCompressor(kernels), format_(format) {}

  std::string_view name() const override { return format_.name; }

 private:
  int64_t size(int64_t count, int64_t) const override { return 2 * count; }

  void encode_floats(const Source& source, const BlockPlace&, char* bytes) const override {
    format_.encode(source, bytes);
  }
  void decode_floats(const char* bytes, float* block, int64_t count) const override {
    format_.decode(bytes, block, count);
  }
  void encode_doubles(const double* block, int64_t count, const BlockPlace&,
                      char* bytes) const override {
    std::vector<float> odd(static_cast<std::size_t>(count));
    for (int64_t i = 0; i < count; ++i) odd[static_cast<std::size_t>(i)] = round_to_odd(block[i]);
    format_.encode({odd.data(), nullptr, count}, bytes);
  }
  void decode_doubles(const char* bytes, double* block, int64_t count) const override {
    std::vector<float> floats(static_cast<std::size_t>(count));
    format_.decode(bytes, floats.data(), count);
    for (int64_t i = 0; i < count; ++i) block[i] = floats[static_cast<std::size_t>(i)];
  }

  const Format format_;
};

}  // namespace

std::unique_ptr<Compressor> make_fp16(const Kernels& kernels) {
  return std::make_unique<Halves>(kernels,
                                  Halves::Format{"fp16", kernels.encode_fp16, kernels.decode_fp16});
}

std::unique_ptr<Compressor> make_bf16(const Kernels& kernels) {
  return std::make_unique<Halves>(kernels,
                                  Halves::Format{"bf16", kernels.encode_bf16, kernels.decode_bf16});
}

}  // namespace trireme::compress
