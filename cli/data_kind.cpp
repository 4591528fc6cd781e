#include <algorithm>

#include "cli/data_views.h"
#include "trireme/core/error.h"
#include "trireme/format/file.h"
#include "trireme/format/images/listing.h"
#include "trireme/format/mapped_file.h"

namespace trireme::cli {

namespace {

using config::DataKind;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

bool is_idx_name(const std::string& name) {
  return contains(name, "images") && contains(name, "idx3");
}

DataKind kind_of_folder(const std::string& path) {
  const format::Listing listing = format::list_directory(path);
  const auto has = [&](auto&& is_one) { return std::ranges::any_of(listing.files, is_one); };
  if (has([](const std::string& name) { return name.starts_with("data_batch"); }) ||
      has([](const std::string& name) { return name == "fine_label_names.txt"; }))
    return DataKind::Cifar;
  if (has(is_idx_name)) return DataKind::Idx;
  return listing.folders.empty() ? DataKind::Text : DataKind::Images;
}

}  // namespace

DataKind guess_kind(const std::string& path) {
  if (format::is_directory(path)) return kind_of_folder(path);
  const std::string name = path.substr(path.rfind('/') + 1);
  if (is_idx_name(name)) return DataKind::Idx;
  if (name.starts_with("data_batch") || name.starts_with("test_batch")) return DataKind::Cifar;
  for (const char* suffix : {".txt", ".md", ".text"})
    if (name.ends_with(suffix)) return DataKind::Text;
  if (name.ends_with(".jsonl")) return DataKind::JsonLines;
  if (!format::is_file(path)) return DataKind::Tokens;  // perhaps NAME of NAME.bin and NAME.idx
  const format::MappedFile file(path);
  const bool is_idx =
      file.bytes() > 4 && std::string_view(file.data(), 4) == std::string_view("\0\0\x08\x03", 4);
  return is_idx ? DataKind::Idx : DataKind::Tokens;
}

std::unique_ptr<const format::ImageSet> open_images(const DataPlace& place, format::Split split) {
  switch (place.kind) {
    case DataKind::Idx: return format::open_idx(place.path, split);
    case DataKind::Cifar: return format::open_cifar(place.path, split);
    case DataKind::Images: return format::open_image_folder(place.path);
    default: break;
  }
  throw MisuseError(fmt::format("{} has no images", place.path));
}

}  // namespace trireme::cli
