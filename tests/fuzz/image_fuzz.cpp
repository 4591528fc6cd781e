// Any bytes as a JPEG or PNG file: refused with an Error, or an image as large as it says.
#include "fuzz/fuzz.h"
#include "trireme/core/error.h"
#include "trireme/format/images/decode.h"

using namespace trireme;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  constexpr int64_t kMostPixels = 1 << 14;  // headers may say anything; the rest is the libraries'
  try {
    const format::Image image =
        format::decode_image({reinterpret_cast<const char*>(data), bytes}, "image", kMostPixels);
    const auto& [height, width, channels] = image.shape;
    fuzz::must(height > 0 && width > 0 && height * width <= kMostPixels);
    fuzz::must(channels == 1 || channels == 3);
    fuzz::must(static_cast<int64_t>(image.pixels.size()) == image.shape.numel());
  } catch (const Error&) {
  }
  return 0;
}
