#include "trireme/format/images/resample.h"

#include <algorithm>
#include <cmath>

#include "trireme/core/error.h"

namespace trireme::format {

namespace {

/// The old pixels that a new one is made of: those from `first` on, with these weights.
struct Taps {
  int64_t first = 0;
  std::vector<float> weights;
};

/// The taps of `count` new pixels that lie on [begin, begin + length) of `size` old ones.
std::vector<Taps> taps_of(double begin, double length, int64_t size, int64_t count) {
  const double scale = length / static_cast<double>(count);  // old pixels of a new one
  const double reach = std::max(scale, 1.0);                 // half of the triangle's foot
  std::vector<Taps> all;
  for (int64_t i = 0; i < count; ++i) {
    const double centre = begin + (static_cast<double>(i) + 0.5) * scale;
    const auto first = static_cast<int64_t>(std::floor(centre - reach + 0.5));
    const auto last = static_cast<int64_t>(std::floor(centre + reach + 0.5));
    Taps taps{std::clamp<int64_t>(first, 0, size - 1), {}};
    double sum = 0;
    for (int64_t at = taps.first; at < std::clamp<int64_t>(last, taps.first + 1, size); ++at) {
      const double away = std::abs(static_cast<double>(at) + 0.5 - centre) / reach;
      taps.weights.push_back(static_cast<float>(std::max(0.0, 1 - away)));
      sum += taps.weights.back();
    }
    if (sum > 0)
      for (float& weight : taps.weights) weight /= static_cast<float>(sum);
    else
      taps.weights.assign(1, 1.0f);  // the centre is outside the image: its nearest pixel
    all.push_back(std::move(taps));
  }
  return all;
}

}  // namespace

// First the rows become short, then the columns: a crop of 300 x 200 at a size of 30 x 20 takes
// 20 x 20 multiplications a pixel fewer than with both at once.
//
//     old rows that are needed        [height][width]             the result
//     +--------------+                +-----+                     +-----+
//     |              |   taps of x    |     |      taps of y      |     |
//     |              |   -------->    |     |      -------->      +-----+
//     +--------------+                +-----+
std::vector<float> resample(const Image& image, const Crop& crop, int64_t height, int64_t width) {
  const auto& [old_height, old_width, channels] = image.shape;
  core::check(crop.width > 0 && crop.height > 0 && height > 0 && width > 0 && old_height > 0 &&
                  old_width > 0,
              "cannot make {} x {} pixels of a crop of {} x {}", height, width, crop.height,
              crop.width);
  const auto across = taps_of(crop.left, crop.width, old_width, width);
  const auto down = taps_of(crop.top, crop.height, old_height, height);
  const int64_t first_row = down.front().first;
  int64_t end_row = first_row;
  for (const Taps& taps : down)
    end_row = std::max(end_row, taps.first + static_cast<int64_t>(taps.weights.size()));

  std::vector<float> result(static_cast<size_t>(channels * height * width));
  std::vector<float> narrow(static_cast<size_t>((end_row - first_row) * width));
  for (int64_t channel = 0; channel < channels; ++channel) {
    for (int64_t row = first_row; row < end_row; ++row) {
      const uint8_t* from = image.pixels.data() + row * old_width * channels + channel;
      float* to = narrow.data() + (row - first_row) * width;
      for (const Taps& taps : across) {
        float sum = 0;
        const uint8_t* pixel = from + taps.first * channels;
        for (const float weight : taps.weights) {
          sum += weight * static_cast<float>(*pixel);
          pixel += channels;
        }
        *to++ = sum;
      }
    }
    float* to = result.data() + channel * height * width;
    for (const Taps& taps : down) {
      const float* from = narrow.data() + (taps.first - first_row) * width;
      for (const float weight : taps.weights) {
        for (int64_t x = 0; x < width; ++x) to[x] += weight * from[x];
        from += width;
      }
      to += width;
    }
  }
  return result;
}

}  // namespace trireme::format
