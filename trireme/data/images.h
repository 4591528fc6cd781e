#pragma once

#include <memory>

#include "trireme/data/dataset.h"
#include "trireme/format/images/image_set.h"
#include "trireme/format/images/resample.h"

namespace trireme::data {

/// How images are changed at random while a model trains on them.
enum class Augmentation : uint8_t {
  None,
  Shift,      ///< moved by up to an eighth of the size, zeros coming in: digits
  ShiftFlip,  ///< the same, and mirrored half of the time: CIFAR
  CropFlip,   ///< a random crop at the wanted size, mirrored half of the time: photographs
};

struct ImageOptions {
  int64_t size = 32;  ///< height and width
  int64_t channels = 3;
  int64_t classes = 10;
  Augmentation augmentation = Augmentation::None;
  uint64_t seed = 1;  ///< of the augmentation
};

/// Images and their labels as samples {float32 [channels, size, size], int64 []}.
///
/// Pixels from 0 to 1 are normalised by constants, so that a trained model needs no more than its
/// weights: colours by the mean and deviation of ImageNet's, as pretrained models expect; grey to
/// -1 ... 1.
///
/// Images that all have one size must have the wanted one. Others are cropped in the middle: of an
/// image whose shorter side is made 8/7 of the wanted size (224 of 256), unless it has exactly the
/// wanted size.
class Images : public Dataset {
 public:
  /// Throws Error, with the values, if labels or sizes are not the wanted ones.
  Images(std::unique_ptr<const format::ImageSet> set, ImageOptions options);
  int64_t size() const override { return set_->size(); }
  Sample get(int64_t index) const override;
  Sample get_in_epoch(int64_t index, int64_t epoch) const override;
  std::string identity() const override { return set_->identity(); }
  const format::ImageSet& set() const { return *set_; }

  /// The part of an image of this shape that training sees, and whether it is mirrored.
  struct View {
    format::Crop crop;
    bool mirrored = false;
  };
  View view_in_epoch(const format::ImageShape& shape, int64_t index, int64_t epoch) const;

 private:
  Sample sample(int64_t index, const format::Image& image, const View& view) const;

  std::unique_ptr<const format::ImageSet> set_;
  ImageOptions options_;
};

}  // namespace trireme::data
