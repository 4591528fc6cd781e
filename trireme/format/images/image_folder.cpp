#include <algorithm>
#include <cctype>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/format/images/decode.h"
#include "trireme/format/images/image_set.h"
#include "trireme/format/images/listing.h"
#include "trireme/format/mapped_file.h"

namespace trireme::format {

namespace {

bool has_image_suffix(const std::string& name) {
  std::string lower = name.substr(name.rfind('.') == name.npos ? name.size() : name.rfind('.'));
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower == ".jpg" || lower == ".jpeg" || lower == ".png";
}

class ImageFolder final : public ImageSet {
 public:
  ImageFolder(const std::string& root, std::vector<std::string> names)
      : root_(root), names_(std::move(names)) {
    const Listing listing = list_directory(root);
    const bool is_given = !names_.empty();
    if (!is_given) names_ = listing.folders;
    for (const std::string& name : listing.folders) {
      const auto place = std::ranges::find(names_, name);
      if (place == names_.end())
        throw Error(fmt::format("{}/{} is none of the {} classes of the training data ({}, ...)",
                                root, name, names_.size(), names_.front()));
      const size_t before = paths_.size();
      find_images(name, 0);
      labels_.resize(paths_.size(), static_cast<int32_t>(place - names_.begin()));
      if (paths_.size() == before)
        throw Error(fmt::format("{}/{} has no .jpg, .jpeg or .png file: each folder is a class",
                                root, name));
    }
    if (paths_.empty())
      throw Error(fmt::format(
          "{} has no folders: put the images of each class into a folder of its own", root));
  }

  int64_t size() const override { return static_cast<int64_t>(paths_.size()); }
  Image image(int64_t index) const override {
    const MappedFile file(path_of(index));
    return decode_image({file.data(), static_cast<size_t>(file.bytes())}, file.path());
  }
  int64_t label(int64_t index) const override { return labels_.at(static_cast<size_t>(index)); }
  std::optional<ImageShape> shape() const override { return {}; }
  int64_t classes() const override { return static_cast<int64_t>(names_.size()); }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::string kind() const override { return "images"; }
  std::string name_of(int64_t index) const override { return path_of(index); }

  /// Of all names, and the bytes of some files.
  std::string identity() const override {
    std::string facts;
    for (const std::string& path : paths_) facts += path + '\n';
    constexpr size_t kMost = 16;
    const size_t count = std::min(paths_.size(), kMost);
    for (size_t i = 0; i < count; ++i) {
      const size_t index = count < 2 ? 0 : i * (paths_.size() - 1) / (count - 1);
      const MappedFile file(path_of(static_cast<int64_t>(index)));
      facts +=
          fmt::format("{:016x} ", core::hash64(file.data(), static_cast<size_t>(file.bytes())));
    }
    return fmt::format("{} images, hash {:016x}", paths_.size(), core::hash64(facts));
  }

 private:
  std::string path_of(int64_t index) const {
    return root_ + '/' + paths_.at(static_cast<size_t>(index));
  }

  /// Appends the images below a folder of the root, those of deeper folders after its own.
  void find_images(const std::string& folder, int depth) {
    constexpr int kDeepest = 16;  // a link may lead back
    if (depth > kDeepest)
      throw Error(fmt::format("{}/{} lies more than {} folders deep", root_, folder, kDeepest));
    const Listing listing = list_directory(root_ + '/' + folder);
    for (const std::string& name : listing.files)
      if (has_image_suffix(name)) paths_.push_back(folder + '/' + name);
    for (const std::string& name : listing.folders) find_images(folder + '/' + name, depth + 1);
  }

  std::string root_;
  std::vector<std::string> names_;
  std::vector<std::string> paths_;  ///< below the root, class by class
  std::vector<int32_t> labels_;
};

}  // namespace

std::unique_ptr<const ImageSet> open_image_folder(const std::string& path,
                                                  const std::vector<std::string>& class_names) {
  return std::make_unique<ImageFolder>(path, class_names);
}

}  // namespace trireme::format
