#include <algorithm>
#include <utility>

#include "trireme/core/error.h"
#include "trireme/format/dtype.h"
#include "trireme/format/json_object.h"
#include "trireme/format/safetensors.h"

namespace trireme::format {

namespace {

constexpr int64_t kMostHeaderBytes = 100'000'000;  // the limit of Hugging Face's reader
constexpr int kMostHeaderDepth = 4;

Entry parse_entry(const std::string& name, const core::Json& json, const std::string& path) {
  const JsonObject object(json, path, fmt::format("tensor '{}'", name));
  Entry entry{.name = name, .dtype = object.text("dtype"), .shape = object.numbers("shape")};
  if (dtype_bytes(entry.dtype) == 0)
    object.fail(fmt::format("has dtype {}, which is none of {}", entry.dtype, known_dtypes()));
  const auto offsets = object.numbers("data_offsets");
  if (offsets.size() != 2 || offsets[1] < offsets[0])
    object.fail("has data_offsets that are not a range of bytes");
  entry.begin = offsets[0];
  entry.bytes = offsets[1] - offsets[0];
  const auto bytes = checked_bytes(entry.dtype, entry.shape);
  if (!bytes || *bytes != entry.bytes)
    object.fail(fmt::format("is {} {}, which does not take the {} bytes of its data_offsets",
                            entry.dtype, format_shape(entry.shape), entry.bytes));
  return entry;
}

Metadata parse_metadata(const core::Json& json, const std::string& path) {
  const JsonObject object(json, path, "__metadata__");
  Metadata metadata;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) object.fail(fmt::format("has a '{}' that is not a string", key));
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

/// Sorts by offset. Throws where tensors overlap, leave holes or lie outside the data.
void check_places(std::vector<Entry>& entries, int64_t data_bytes, const std::string& path) {
  std::ranges::stable_sort(entries, {}, [](const Entry& entry) {
    return std::pair(entry.begin, entry.begin + entry.bytes);
  });
  int64_t end = 0;
  for (const Entry& entry : entries) {
    if (entry.begin > data_bytes || entry.bytes > data_bytes - entry.begin)
      throw CheckpointError(fmt::format(
          "{}: tensor '{}' ends at byte {} of the data, which has only {}: the file was cut off",
          path, entry.name, entry.begin + entry.bytes, data_bytes));
    if (entry.begin != end)
      throw CheckpointError(fmt::format(
          "{}: tensor '{}' begins at byte {} of the data, {} {}", path, entry.name, entry.begin,
          entry.begin < end ? "inside another, which ends at" : "after a hole that begins at",
          end));
    end = entry.begin + entry.bytes;
  }
  if (end != data_bytes)
    throw CheckpointError(
        fmt::format("{}: {} bytes of its data belong to no tensor", path, data_bytes - end));
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path) : file_(File::open(path)) {
  open("its header");
}

SafetensorsReader::SafetensorsReader(const std::string& path, const FileInfo& expected,
                                     std::string_view wanted)
    : file_(VerifiedFile(path, expected)) {
  open(wanted.empty() ? "its header" : fmt::format("its header, to find tensor '{}'", wanted));
}

void SafetensorsReader::open(std::string_view what) {
  const auto& [path, file_bytes] =
      std::visit([](const auto& file) { return std::pair(file.path(), file.bytes()); }, file_);
  unsigned char prefix[8];
  if (file_bytes < 8)
    throw CheckpointError(
        fmt::format("{} has {} bytes: it is not a safetensors file", path, file_bytes));
  read_at(0, 8, prefix, what);
  uint64_t header_bytes = 0;
  for (int i = 0; i < 8; ++i) header_bytes |= uint64_t{prefix[i]} << (8 * i);
  const int64_t most = std::min(file_bytes - 8, kMostHeaderBytes);
  if (header_bytes > static_cast<uint64_t>(most))
    throw CheckpointError(
        fmt::format("{} has {} bytes and says that its header has {}: it is "
                    "damaged, cut off or not a safetensors file",
                    path, file_bytes, header_bytes));
  std::string text(header_bytes, '\0');
  read_at(8, static_cast<int64_t>(header_bytes), text.data(), what);

  const core::Json header = parse_untrusted(text, path, kMostHeaderDepth);
  const JsonObject object(header, path, "its header");
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__")
      metadata_ = parse_metadata(value, path);
    else
      entries_.push_back(parse_entry(name, value, path));
  }
  const int64_t data_begin = 8 + static_cast<int64_t>(header_bytes);
  check_places(entries_, file_bytes - data_begin, path);
  for (size_t i = 0; i < entries_.size(); ++i) {
    entries_[i].begin += data_begin;
    places_[entries_[i].name] = i;
  }
}

const Entry* SafetensorsReader::find(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &entries_[found->second];
}

void SafetensorsReader::read(std::string_view name, int64_t begin_byte, int64_t bytes, void* to) {
  const Entry* entry = find(name);
  const std::string& path = std::visit(
      [](auto& file) -> auto& { return file.path(); }, file_);
  if (entry == nullptr) throw CheckpointError(fmt::format("{} has no tensor '{}'", path, name));
  core::check(
      begin_byte >= 0 && bytes >= 0 && bytes <= entry->bytes && begin_byte <= entry->bytes - bytes,
      "{}: {} bytes at {} of tensor '{}' were asked for, but it has {}", path, bytes, begin_byte,
      name, entry->bytes);
  read_at(entry->begin + begin_byte, bytes, to, name);
}

void SafetensorsReader::read_at(int64_t offset, int64_t bytes, void* to, std::string_view what) {
  std::visit([&](auto& file) { file.read(offset, bytes, to, what); }, file_);
}

}  // namespace trireme::format
