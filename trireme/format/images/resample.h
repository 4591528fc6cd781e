#pragma once

#include <vector>

#include "trireme/format/images/image.h"

namespace trireme::format {

/// A rectangle of an image. Its borders may lie inside pixels.
struct Crop {
  double left = 0, top = 0, width = 0, height = 0;
};

/// The crop at another size, from 0 to 255, one channel after the other: [channels][height][width].
///
/// A new pixel is a weighted mean of the old ones around its centre. The weights are a triangle
/// that is two new pixels wide where the image shrinks, so that every old pixel counts, and two old
/// ones where it grows:
///
///     old   | . | . | . | . | . | . |        weight       /\            of the new pixel
///     new   |     a     |     b     |                   /    \          whose centre is below
///                                                     /   a    \        the tip
std::vector<float> resample(const Image& image, const Crop& crop, int64_t height, int64_t width);

}  // namespace trireme::format
