#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <set>
#include <utility>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/core/json.h"
#include "trireme/core/units.h"
#include "trireme/format/dtype.h"
#include "trireme/format/safetensors.h"

namespace trireme::format {

namespace {

/// Alignment of the data in the file: that of the memory that tensors are read into, for speed.
constexpr size_t kAlign = 64;

/// How much is written to the disk at a time. It bypasses the page cache: the bytes are not read
/// again soon, and copying them there would take time of a core that computes.
constexpr int64_t kStagedBytes = 4 * core::kMiB;

/// Sets where each entry begins, counted from the first byte of the data; returns all their bytes.
int64_t place(std::vector<Entry>& entries, const std::string& path) {
  std::set<std::string> names;
  int64_t end = 0;
  for (Entry& entry : entries) {
    const auto bytes = checked_bytes(entry.dtype, entry.shape);
    core::check(bytes.has_value(), "{}: tensor '{}' of {} {} cannot be written (known dtypes: {})",
                path, entry.name, entry.dtype, format_shape(entry.shape), known_dtypes());
    core::check(entry.name != "__metadata__" && names.insert(entry.name).second,
                "{}: a tensor cannot be named '{}'{}", path, entry.name,
                names.contains(entry.name) ? " twice" : "");
    entry.begin = end;
    entry.bytes = *bytes;
    core::check(!__builtin_add_overflow(end, *bytes, &end),
                "{}: the tensors have more bytes than a file can have", path);
  }
  return end;
}

std::string header_of(const std::vector<Entry>& entries, const Metadata& metadata) {
  core::Json header = core::Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  for (const Entry& entry : entries)
    header[entry.name] = {{"dtype", entry.dtype},
                          {"shape", entry.shape},
                          {"data_offsets", {entry.begin, entry.begin + entry.bytes}}};
  std::string text;
  try {
    text = header.dump();
  } catch (const core::Json::exception&) {
    throw MisuseError("names and metadata of tensors must be UTF-8");
  }
  text.append((kAlign - (8 + text.size()) % kAlign) % kAlign, ' ');
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<Entry> entries,
                                     const Metadata& metadata)
    : file_(File::create(path)),
      entries_(std::move(entries)),
      staged_(static_cast<char*>(
          std::aligned_alloc(File::kDirectAlign, static_cast<size_t>(kStagedBytes)))) {
  if (staged_ == nullptr) throw std::bad_alloc();
  left_bytes_ = place(entries_, path);
  if (left_bytes_ >= kStagedBytes) direct_ = file_.set_direct(true);
  const std::string header = header_of(entries_, metadata);
  const uint64_t header_bytes = header.size();
  unsigned char prefix[8];
  for (int i = 0; i < 8; ++i) prefix[i] = static_cast<unsigned char>(header_bytes >> (8 * i));
  add(prefix, 8);
  add(header.data(), static_cast<int64_t>(header.size()));
  for (Entry& entry : entries_) entry.begin += 8 + static_cast<int64_t>(header.size());
}

void SafetensorsWriter::append(const void* from, int64_t bytes) {
  core::check(bytes >= 0 && bytes <= left_bytes_, "{}: {} bytes appended where {} are left",
              file_.path(), bytes, left_bytes_);
  left_bytes_ -= bytes;
  add(from, bytes);
}

void SafetensorsWriter::Free::operator()(char* memory) const {
  std::free(memory);
}

void SafetensorsWriter::add(const void* from, int64_t bytes) {
  const auto* next = static_cast<const char*>(from);
  while (bytes > 0) {
    const int64_t part = std::min(bytes, kStagedBytes - staged_bytes_);
    std::memcpy(staged_.get() + staged_bytes_, next, static_cast<size_t>(part));
    staged_bytes_ += part;
    next += part;
    bytes -= part;
    if (staged_bytes_ == kStagedBytes) put_staged();
  }
}

void SafetensorsWriter::put_staged() {
  // Only the last write may have a size that O_DIRECT does not allow.
  if (direct_ && staged_bytes_ % File::kDirectAlign != 0) direct_ = file_.set_direct(false);
  for (int64_t begin = 0; begin < staged_bytes_; begin += kBlockBytes)
    written_.checksums.push_back(core::hash128_hex(
        staged_.get() + begin, static_cast<size_t>(std::min(kBlockBytes, staged_bytes_ - begin))));
  file_.write(staged_.get(), staged_bytes_);
  written_.bytes += staged_bytes_;
  staged_bytes_ = 0;
}

FileInfo SafetensorsWriter::finish() {
  core::check(left_bytes_ == 0, "{}: finish() was called {} bytes before the end", file_.path(),
              left_bytes_);
  if (staged_bytes_ > 0) put_staged();
  file_.finish();
  return std::move(written_);
}

}  // namespace trireme::format
