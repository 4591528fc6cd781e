// CIFAR's binary versions. A file is records of one image each, red before green before blue:
//
//     CIFAR-10     label | red 32 x 32 | green | blue                 3073 bytes
//     CIFAR-100    coarse label | fine label | red | green | blue     3074 bytes
#include <algorithm>
#include <deque>

#include "trireme/core/error.h"
#include "trireme/format/file.h"
#include "trireme/format/images/image_set.h"
#include "trireme/format/images/listing.h"
#include "trireme/format/mapped_file.h"

namespace trireme::format {

namespace {

constexpr int64_t kSide = 32, kPlane = kSide * kSide;

struct CifarKind {
  const char* name;
  int64_t label_bytes, classes;
  const char* names_file;  ///< in the archive
  int64_t record_bytes() const { return label_bytes + 3 * kPlane; }
};
constexpr CifarKind kCifar10 = {"CIFAR-10", 1, 10, "batches.meta.txt"};
constexpr CifarKind kCifar100 = {"CIFAR-100", 2, 100, "fine_label_names.txt"};

const CifarKind& kind_of(const MappedFile& file) {
  for (const CifarKind* kind : {&kCifar10, &kCifar100})
    if (file.bytes() % kind->record_bytes() == 0) return *kind;
  throw Error(
      fmt::format("{} has {} bytes, neither records of {} (CIFAR-10, binary version) nor of {} "
                  "(CIFAR-100): it was cut short, or is not a file of CIFAR",
                  file.path(), file.bytes(), kCifar10.record_bytes(), kCifar100.record_bytes()));
}

std::vector<std::string> names_beside(const std::string& path, const CifarKind& kind) {
  const size_t slash = path.rfind('/');
  const std::string file = path.substr(0, slash == path.npos ? 0 : slash + 1) + kind.names_file;
  std::vector<std::string> names;
  if (!is_file(file)) return names;
  const std::string text = read_file(file, 1 << 16);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string name = text.substr(begin, end - begin);
    if (name.ends_with('\r')) name.pop_back();
    if (!name.empty()) names.push_back(std::move(name));
    begin = end + 1;
  }
  if (static_cast<int64_t>(names.size()) != kind.classes) names.clear();
  return names;
}

class Cifar final : public ImageSet {
 public:
  explicit Cifar(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      const MappedFile& file = files_.emplace_back(path);
      const CifarKind& kind = kind_of(file);
      if (kind_ != nullptr && kind_ != &kind)
        throw Error(fmt::format("{} is a file of {}, but {} is one of {}", path, kind.name,
                                paths.front(), kind_->name));
      kind_ = &kind;
      ends_.push_back(size() + file.bytes() / kind.record_bytes());
      check_labels(file);
    }
    names_ = names_beside(paths.front(), *kind_);
  }

  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  std::optional<ImageShape> shape() const override { return ImageShape{kSide, kSide, 3}; }
  int64_t classes() const override { return kind_->classes; }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::string kind() const override { return kind_->name; }
  std::string identity() const override { return identity_of_some(*this); }

  int64_t label(int64_t index) const override {
    const auto [file, at] = place_of(index);
    file->check_whole();
    return file->at<uint8_t>(at + kind_->label_bytes - 1);
  }
  Image image(int64_t index) const override {
    const auto [file, at] = place_of(index);
    file->check_whole();
    Image image{*shape(), std::vector<uint8_t>(3 * kPlane)};
    const char* planes = file->data() + at + kind_->label_bytes;
    for (int64_t i = 0; i < kPlane; ++i)
      for (int64_t channel = 0; channel < 3; ++channel)
        image.pixels[static_cast<size_t>(3 * i + channel)] =
            static_cast<uint8_t>(planes[channel * kPlane + i]);
    return image;
  }
  std::string name_of(int64_t index) const override {
    const auto [file, at] = place_of(index);
    return fmt::format("{}, image {}", file->path(), at / kind_->record_bytes());
  }

 private:
  std::pair<const MappedFile*, int64_t> place_of(int64_t index) const {
    core::check(index >= 0 && index < size(), "the data set has {} images, not {}", size(),
                index + 1);
    const auto which = static_cast<size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
    const int64_t before = which == 0 ? 0 : ends_[which - 1];
    return {&files_[which], (index - before) * kind_->record_bytes()};
  }

  void check_labels(const MappedFile& file) const {
    for (int64_t i = 0; i < file.bytes() / kind_->record_bytes(); ++i) {
      const auto label = file.at<uint8_t>(i * kind_->record_bytes() + kind_->label_bytes - 1);
      if (label >= kind_->classes)
        throw Error(
            fmt::format("{}, image {}: label {} is not below {}, so this is not a file of {}",
                        file.path(), i, label, kind_->classes, kind_->name));
    }
  }

  const CifarKind* kind_ = nullptr;
  std::deque<MappedFile> files_;
  std::vector<int64_t> ends_;  ///< images up to the end of each file
  std::vector<std::string> names_;
};

std::vector<std::string> cifar_files_in(const std::string& folder, Split split) {
  std::vector<std::string> paths;
  for (const std::string& name : list_directory(folder).files) {
    const bool is_train = name.starts_with("data_batch") || name == "train.bin";
    const bool is_valid = name == "test_batch.bin" || name == "test.bin";
    if (name.ends_with(".bin") && (split == Split::Train ? is_train : is_valid))
      paths.push_back(folder + '/' + name);
  }
  if (paths.empty())
    throw Error(fmt::format("{} has no {}: unpack CIFAR's binary version there", folder,
                            split == Split::Train ? "data_batch_1.bin (CIFAR-10) or train.bin "
                                                    "(CIFAR-100)"
                                                  : "test_batch.bin (CIFAR-10) or test.bin "
                                                    "(CIFAR-100)"));
  return paths;
}

}  // namespace

std::unique_ptr<const ImageSet> open_cifar(const std::string& path, Split split) {
  if (is_directory(path)) return std::make_unique<Cifar>(cifar_files_in(path, split));
  return std::make_unique<Cifar>(std::vector<std::string>{path});
}

}  // namespace trireme::format
