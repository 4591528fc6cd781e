#include "trireme/format/images/image.h"

#include <fmt/format.h>

#include "trireme/core/error.h"

namespace trireme::format {

std::string to_string(const ImageShape& shape) {
  const std::string size = fmt::format("{} x {} pixels", shape.height, shape.width);
  if (shape.channels == 1) return size + ", grey";
  if (shape.channels == 3) return size + ", colour";
  return fmt::format("{}, {} channels", size, shape.channels);
}

Image with_channels(Image image, int64_t channels) {
  core::check(channels == 1 || channels == 3, "images have 1 or 3 channels, not {}", channels);
  if (image.shape.channels == channels) return image;
  Image other{image.shape, {}};
  other.shape.channels = channels;
  other.pixels.reserve(static_cast<size_t>(other.shape.numel()));
  if (channels == 3) {
    for (const uint8_t grey : image.pixels) other.pixels.insert(other.pixels.end(), 3, grey);
  } else {
    for (size_t i = 0; i + 2 < image.pixels.size(); i += 3) {
      const int sum = 299 * image.pixels[i] + 587 * image.pixels[i + 1] + 114 * image.pixels[i + 2];
      other.pixels.push_back(static_cast<uint8_t>((sum + 500) / 1000));
    }
  }
  return other;
}

}  // namespace trireme::format
