#include <algorithm>
#include <array>
#include <vector>

#include "trireme/compress/compressors.h"
#include "trireme/compress/cpu_compressor.h"
#include "trireme/core/hash.h"

// int8: the numbers are described in int8_body.h. The bytes:
//
//   scale 0 | scale 1 | ...  float32, one for 256 elements    byte 0 | byte 1 | ...  one each
//
// Element i takes byte i % 16 of Philox at (step, first + i - i % 16); the key is a hash of seed
// and stream. float64 is encoded as float32: what float32 cannot hold counts as infinite.
namespace trireme::compress {

namespace {

int64_t scale_bytes(int64_t count) {
  return (count + kInt8Block - 1) / kInt8Block * static_cast<int64_t>(sizeof(float));
}

RandomPlace random_place(const BlockPlace& place) {
  const std::array<uint64_t, 2> words = {place.seed, place.stream};
  return {core::hash64(words.data(), sizeof words), static_cast<uint64_t>(place.step),
          static_cast<uint64_t>(place.first)};
}

class Int8 final : public CpuCompressor {
 public:
  explicit Int8(const Kernels& kernels) : CpuCompressor(kernels) {}
  std::string_view name() const override { return "int8"; }

 private:
  int64_t size(int64_t count, int64_t) const override { return scale_bytes(count) + count; }

  void encode_floats(const Source& source, const BlockPlace& place, char* bytes) const override {
    kernels_.encode_int8(source, random_place(place), bytes, bytes + scale_bytes(source.count));
  }
  void decode_floats(const char* bytes, float* block, int64_t count) const override {
    kernels_.decode_int8(bytes, bytes + scale_bytes(count), block, count);
  }
  void encode_doubles(const double* block, int64_t count, const BlockPlace& place,
                      char* bytes) const override {
    const std::vector<float> floats(block, block + count);
    encode_floats({floats.data(), nullptr, count}, place, bytes);
  }
  void decode_doubles(const char* bytes, double* block, int64_t count) const override {
    std::vector<float> floats(static_cast<std::size_t>(count));
    decode_floats(bytes, floats.data(), count);
    std::copy(floats.begin(), floats.end(), block);
  }
};

}  // namespace

std::unique_ptr<Compressor> make_int8(const Kernels& kernels) {
  return std::make_unique<Int8>(kernels);
}

}  // namespace trireme::compress
