#include "trireme/format/images/idx.h"

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/format/file.h"
#include "trireme/format/images/gzip.h"
#include "trireme/format/images/image_set.h"
#include "trireme/format/images/listing.h"

namespace trireme::format {

namespace {

constexpr int64_t header_bytes(int dims) {
  return 4 + 4 * dims;
}

bool begins_as_gzip(const MappedFile& file) {
  return file.bytes() >= 2 && file.at<uint8_t>(0) == 0x1f && file.at<uint8_t>(1) == 0x8b;
}

int64_t big_endian(const char* bytes) {
  int64_t number = 0;
  for (int i = 0; i < 4; ++i) number = number << 8 | static_cast<uint8_t>(bytes[i]);
  return number;
}

}  // namespace

IdxFile::IdxFile(const std::string& path, int dims) : file_(path) {
  const int64_t header = header_bytes(dims);
  const auto refuse = [&](int64_t bytes, int64_t wanted) {
    throw Error(fmt::format(
        "{} says that it has {} items of {} bytes, which takes {} bytes{}, but it has {}: it was "
        "cut short or changed",
        path, sizes_.front(), row_bytes_, wanted, unpacked_ ? " when unpacked" : "", bytes));
  };
  const auto begin = [&](const char* start, int64_t bytes) {
    if (bytes >= 4) check_magic(start, dims);
    if (bytes < header)
      throw Error(
          fmt::format("{} has {} bytes, less than the header of an IDX file of {} dimension{}",
                      path, bytes, dims, dims == 1 ? "" : "s"));
    read_sizes(start, dims);
  };
  if (!begins_as_gzip(file_)) {
    begin(file_.data(), file_.bytes());
    const int64_t wanted = header + sizes_.front() * row_bytes_;
    if (file_.bytes() != wanted) refuse(file_.bytes(), wanted);
    return;
  }
  GzipReader packed(path);
  std::string start;
  packed.read(header, start);
  begin(start.data(), static_cast<int64_t>(start.size()));
  const int64_t wanted = sizes_.front() * row_bytes_;
  unpacked_.emplace();
  packed.read(wanted + 1, *unpacked_);  // one more than there should be
  if (const auto got = static_cast<int64_t>(unpacked_->size()); got != wanted)
    refuse(header + got, header + wanted);
}

void IdxFile::check_magic(const char* header, int dims) const {
  const auto byte = [&](int i) { return static_cast<uint8_t>(header[i]); };
  if (byte(0) != 0 || byte(1) != 0 || byte(2) != 8 || byte(3) != dims)
    throw Error(fmt::format(
        "{} begins with {:02x} {:02x} {:02x} {:02x}; an IDX file of {} begins with 00 00 08 {:02x}",
        path(), byte(0), byte(1), byte(2), byte(3), dims == 1 ? "labels" : "grey images", dims));
}

void IdxFile::read_sizes(const char* header, int dims) {
  constexpr int64_t kMostBytes = int64_t{1} << 40;
  for (int i = 0; i < dims; ++i) {
    const int64_t size = big_endian(header + 4 + 4 * i);
    const int64_t before = i == 0 ? 1 : row_bytes_ * sizes_.front();
    if (size == 0 || size > kMostBytes / before)
      throw Error(fmt::format("{} says that size {} of {} is {}, which is {}", path(), i + 1, dims,
                              size, size == 0 ? "nothing" : "too much"));
    sizes_.push_back(size);
    if (i > 0) row_bytes_ *= size;
  }
}

const uint8_t* IdxFile::row(int64_t index) const {
  core::check(index >= 0 && index < sizes_.front(), "{} has {} items, not {}", path(),
              sizes_.front(), index + 1);
  const char* first =
      unpacked_ ? unpacked_->data() : file_.data() + header_bytes(static_cast<int>(sizes_.size()));
  return reinterpret_cast<const uint8_t*>(first) + index * row_bytes_;
}

void IdxFile::check_whole() const {
  if (!unpacked_) file_.check_whole();
}

namespace {

class IdxImages final : public ImageSet {
 public:
  IdxImages(const std::string& images, const std::string& labels)
      : images_(images, 3), labels_(labels, 1) {
    const int64_t count = images_.sizes()[0];
    if (labels_.sizes()[0] != count)
      throw Error(fmt::format("{} has {} images, but {} has {} labels", images, count, labels,
                              labels_.sizes()[0]));
    classes_ = 1 + *std::max_element(labels_.row(0), labels_.row(0) + count);
  }

  int64_t size() const override { return images_.sizes()[0]; }
  Image image(int64_t index) const override {
    images_.check_whole();
    const uint8_t* from = images_.row(index);
    return {*shape(), {from, from + images_.row_bytes()}};
  }
  int64_t label(int64_t index) const override {
    labels_.check_whole();
    return *labels_.row(index);
  }
  std::optional<ImageShape> shape() const override {
    return ImageShape{images_.sizes()[1], images_.sizes()[2], 1};
  }
  int64_t classes() const override { return classes_; }
  const std::vector<std::string>& class_names() const override { return no_names_; }
  std::string kind() const override { return "idx"; }
  std::string name_of(int64_t index) const override {
    return fmt::format("{}, image {}", images_.path(), index);
  }
  std::string identity() const override { return identity_of_some(*this); }

 private:
  IdxFile images_, labels_;
  int64_t classes_ = 0;
  std::vector<std::string> no_names_;
};

/// The file of images in a folder that has them as MNIST's archive does.
std::string idx_images_in(const std::string& folder, Split split) {
  const bool train = split == Split::Train;
  const Listing listing = list_directory(folder);
  for (const char* start : {train ? "train-images" : "t10k-images",
                            train ? "train_images" : "test-images", train ? "" : "valid-images"})
    for (const std::string& name : listing.files)
      if (*start != '\0' && name.starts_with(start)) return folder + '/' + name;
  throw Error(fmt::format("{} has no file {}, nor one with .gz", folder,
                          train ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte"));
}

/// x-labels-idx1-ubyte for x-images-idx3-ubyte; with or without .gz, as it is there.
std::string labels_beside(const std::string& images) {
  const size_t slash = images.rfind('/');
  std::string name = images.substr(slash == images.npos ? 0 : slash + 1);
  const std::string folder = images.substr(0, images.size() - name.size());
  const auto replace = [&](std::string_view old, std::string_view now) {
    const size_t at = name.find(old);
    if (at != name.npos) name.replace(at, old.size(), now);
    return at != name.npos;
  };
  if (!replace("images", "labels"))
    throw Error(fmt::format(
        "{}: the file of labels is found by its name, with \"labels\" for \"images\"; call the two "
        "as MNIST does, train-images-idx3-ubyte and train-labels-idx1-ubyte",
        images));
  replace("idx3", "idx1");
  const std::string bare = name.ends_with(".gz") ? name.substr(0, name.size() - 3) : name;
  for (const std::string& each : {folder + name, folder + bare, folder + bare + ".gz"})
    if (is_file(each)) return each;
  throw Error(
      fmt::format("{} has images, but their labels, {}{}, are not there", images, folder, name));
}

}  // namespace

std::unique_ptr<const ImageSet> open_idx(const std::string& path, Split split) {
  std::string images = is_directory(path) ? idx_images_in(path, split) : path;
  if (!is_file(images) && is_file(images + ".gz")) images += ".gz";
  if (!is_file(images)) throw Error(fmt::format("cannot open {}: no such file", images));
  return std::make_unique<IdxImages>(images, labels_beside(images));
}

}  // namespace trireme::format
