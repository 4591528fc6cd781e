#include "trireme/data/images.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "trireme/core/error.h"
#include "trireme/core/philox.h"

namespace trireme::data {

namespace {

constexpr uint64_t kAugment =
    0x6175676D656E74;  // "augment": separates it from other uses of the seed

struct Normal {
  float mean, deviation;
};
constexpr Normal kColours[] = {{0.485f, 0.229f}, {0.456f, 0.224f}, {0.406f, 0.225f}};
constexpr Normal kGrey = {0.5f, 0.5f};

/// Numbers from 0 to below 1 that belong to one sample of one epoch.
class Dice {
 public:
  Dice(uint64_t seed, int64_t index, int64_t epoch)
      : seed_(seed ^ kAugment), index_(index), epoch_(epoch) {}
  double next() {
    if (used_ % 4 == 0)
      words_ = core::philox(seed_, static_cast<uint64_t>(epoch_),
                            static_cast<uint64_t>(index_) | uint64_t{used_ / 4} << 56);
    return words_[used_++ % 4] * 0x1p-32;
  }
  double between(double low, double high) { return low + (high - low) * next(); }
  /// From 0 to `most`.
  int64_t up_to(int64_t most) {
    return std::min(most, static_cast<int64_t>(next() * static_cast<double>(most + 1)));
  }

 private:
  uint64_t seed_;
  int64_t index_, epoch_;
  std::array<uint32_t, 4> words_{};
  uint32_t used_ = 0;
};

format::Crop middle(const format::ImageShape& shape, double height, double width) {
  return {(static_cast<double>(shape.width) - width) / 2,
          (static_cast<double>(shape.height) - height) / 2, width, height};
}

/// What evaluation sees of an image of any size.
format::Crop central_crop(const format::ImageShape& shape, int64_t size) {
  if (shape.height == size && shape.width == size)
    return middle(shape, static_cast<double>(size), static_cast<double>(size));
  const double side = static_cast<double>(std::min(shape.height, shape.width)) * 7 / 8;
  return middle(shape, side, side);
}

/// A crop of 8 to 100 % of the area, its width 3/4 to 4/3 of its height (Szegedy et al. 2014). Ten
/// attempts; then all of the image that has such a form.
format::Crop random_crop(const format::ImageShape& shape, Dice& dice) {
  const auto height = static_cast<double>(shape.height), width = static_cast<double>(shape.width);
  constexpr double kThinnest = 3.0 / 4, kWidest = 4.0 / 3;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = height * width * dice.between(0.08, 1);
    const double form = std::exp(dice.between(std::log(kThinnest), std::log(kWidest)));
    const double across = std::sqrt(area * form), down = std::sqrt(area / form);
    if (across > width || down > height) continue;
    const double left = dice.between(0, width - across), top = dice.between(0, height - down);
    return {left, top, across, down};
  }
  return middle(shape, std::min(height, width / kThinnest), std::min(width, height * kWidest));
}

}  // namespace

Images::Images(std::unique_ptr<const format::ImageSet> set, ImageOptions options)
    : set_(std::move(set)), options_(options) {
  core::check(options.channels == 1 || options.channels == 3, "images have 1 or 3 channels, not {}",
              options.channels);
  if (set_->classes() > options.classes)
    throw Error(fmt::format("{}: the data has {} classes, but model.classes = {}", set_->name_of(0),
                            set_->classes(), options.classes));
  const auto shape = set_->shape();
  if (!shape || *shape == format::ImageShape{options.size, options.size, options.channels}) return;
  const bool is_square = shape->height == shape->width;
  throw Error(fmt::format(
      "{} has {}, but model.image = {} and model.channels = {}{}", set_->name_of(0),
      to_string(*shape), options.size, options.channels,
      is_square
          ? fmt::format("; set model.image={} model.channels={}", shape->height, shape->channels)
          : "; only square images of one size can be read from such files"));
}

Images::View Images::view_in_epoch(const format::ImageShape& shape, int64_t index,
                                   int64_t epoch) const {
  Dice dice(options_.seed, index, epoch);
  View view;
  switch (options_.augmentation) {
    case Augmentation::None: view.crop = central_crop(shape, options_.size); return view;
    case Augmentation::CropFlip: view.crop = random_crop(shape, dice); break;
    case Augmentation::Shift:
    case Augmentation::ShiftFlip: {
      const int64_t most = std::max<int64_t>(1, options_.size / 8);
      const auto size = static_cast<double>(options_.size);
      const auto left = static_cast<double>(dice.up_to(2 * most) - most);
      const auto top = static_cast<double>(dice.up_to(2 * most) - most);
      view.crop = {left, top, size, size};
      break;
    }
  }
  view.mirrored = options_.augmentation != Augmentation::Shift && dice.next() < 0.5;
  return view;
}

namespace {

/// Pixels of the image moved by whole pixels, zeros (black) where there are none:
///
///     +---------+                  crop.left = 2, crop.top = -1
///     | image +-|-------+
///     |       | | 0 0 0 |
///     +-------|-+ 0 0 0 |
///             +---------+
void copy_shifted(const format::Image& image, const format::Crop& crop, float* to) {
  const auto& [height, width, channels] = image.shape;
  const auto left = static_cast<int64_t>(crop.left), top = static_cast<int64_t>(crop.top);
  const auto rows = static_cast<int64_t>(crop.height), columns = static_cast<int64_t>(crop.width);
  for (int64_t channel = 0; channel < channels; ++channel)
    for (int64_t y = top; y < top + rows; ++y)
      for (int64_t x = left; x < left + columns; ++x) {
        const bool inside = y >= 0 && y < height && x >= 0 && x < width;
        *to++ =
            inside ? image.pixels[static_cast<size_t>((y * width + x) * channels + channel)] : 0;
      }
}

void mirror(float* pixels, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; ++row)
    std::reverse(pixels + row * columns, pixels + (row + 1) * columns);
}

}  // namespace

Sample Images::sample(int64_t index, const format::Image& image, const View& view) const {
  const int64_t size = options_.size, plane = size * size;
  const at::Tensor input = at::empty({options_.channels, size, size}, at::kFloat);
  auto* pixels = input.data_ptr<float>();
  const bool is_resampled = view.crop.width != static_cast<double>(size) ||
                            view.crop.height != static_cast<double>(size) ||
                            options_.augmentation == Augmentation::CropFlip;
  if (is_resampled) {
    const auto planes = format::resample(image, view.crop, size, size);
    std::ranges::copy(planes, pixels);
  } else {
    copy_shifted(image, view.crop, pixels);
  }
  if (view.mirrored) mirror(pixels, options_.channels * size, size);
  for (int64_t channel = 0; channel < options_.channels; ++channel) {
    const auto [mean, deviation] =
        options_.channels == 3 ? kColours[static_cast<size_t>(channel)] : kGrey;
    for (int64_t i = 0; i < plane; ++i, ++pixels) *pixels = (*pixels / 255 - mean) / deviation;
  }
  return {input, at::full({}, set_->label(index), at::kLong)};
}

Sample Images::get(int64_t index) const {
  const format::Image image = with_channels(set_->image(index), options_.channels);
  return sample(index, image, {central_crop(image.shape, options_.size), false});
}

Sample Images::get_in_epoch(int64_t index, int64_t epoch) const {
  const format::Image image = with_channels(set_->image(index), options_.channels);
  return sample(index, image, view_in_epoch(image.shape, index, epoch));
}

}  // namespace trireme::data
