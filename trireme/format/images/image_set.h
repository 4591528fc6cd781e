#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/format/images/image.h"

namespace trireme::format {

/// Numbered images, each with the number of its class, as a data set on disk has them. Opening one
/// validates it; what is wrong is an Error with one sentence that names the file. Thread-safe.
class ImageSet {
 public:
  virtual ~ImageSet() = default;

  virtual int64_t size() const = 0;
  virtual Image image(int64_t index) const = 0;
  virtual int64_t label(int64_t index) const = 0;
  /// The size of all images; nothing where each has its own.
  virtual std::optional<ImageShape> shape() const = 0;
  /// One more than the largest label.
  virtual int64_t classes() const = 0;
  /// What the classes are called; empty where the data set does not say.
  virtual const std::vector<std::string>& class_names() const = 0;
  /// The data set in a word or two: "idx", "CIFAR-10".
  virtual std::string kind() const = 0;
  /// Where an image is, for messages: "train-images-idx3-ubyte, image 7".
  virtual std::string name_of(int64_t index) const = 0;
  /// Identifies the images without reading all of them; the same for the same images under any
  /// name.
  virtual std::string identity() const = 0;
};

/// Which of the two parts of a data set a folder stands for, where it holds both.
enum class Split : uint8_t { Train, Valid };

/// MNIST and the data sets that look like it: a file of grey images and one of labels beside it,
/// plain or .gz. `path` is the file of images, whose name contains "images", as in
/// train-images-idx3-ubyte; or a folder with train-images* and t10k-images*.
std::unique_ptr<const ImageSet> open_idx(const std::string& path, Split split);

/// CIFAR-10 and CIFAR-100 in their binary versions: one file, or the folder that is in the archive.
/// The label of CIFAR-100 is the fine one.
std::unique_ptr<const ImageSet> open_cifar(const std::string& path, Split split);

/// A folder with one folder for each class, which holds JPEG and PNG files, perhaps in folders of
/// their own. The classes are numbered in the order of `class_names`; without them, in the
/// order of the folders' names.
std::unique_ptr<const ImageSet> open_image_folder(const std::string& path,
                                                  const std::vector<std::string>& class_names = {});

/// "60000 images, hash 0123456789abcdef": of up to 16 images, the first and the last among them,
/// with their labels.
std::string identity_of_some(const ImageSet& set);

}  // namespace trireme::format
