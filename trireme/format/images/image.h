#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::format {

/// What all images of a data set may have in common. One channel is grey, three are red, green and
/// blue.
struct ImageShape {
  int64_t height = 0, width = 0, channels = 0;
  int64_t numel() const { return height * width * channels; }
  bool operator==(const ImageShape&) const = default;
};

/// "28 x 28 pixels, grey"
std::string to_string(const ImageShape& shape);

/// An image in memory, as screens and decoders have it: rows from the top, pixels from the left,
/// the channels of a pixel together.
struct Image {
  ImageShape shape;
  std::vector<uint8_t> pixels;  ///< of shape.numel() bytes
};

/// The image with 1 or 3 channels. Grey becomes three equal channels; colours become their
/// brightness, 0.299 red + 0.587 green + 0.114 blue, as in most programs.
Image with_channels(Image image, int64_t channels);

}  // namespace trireme::format
