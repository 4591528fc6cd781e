#include "trireme/format/load.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/format/dtype.h"
#include "trireme/format/overlap.h"

namespace trireme::format {

namespace {

void check_wanted(const Piece& wanted) {
  const size_t dims = wanted.whole.size();
  bool inside = wanted.offset.size() == dims && wanted.shape.size() == dims;
  for (size_t dim = 0; inside && dim < dims; ++dim)
    inside = wanted.offset[dim] >= 0 && wanted.shape[dim] >= 0 &&
             wanted.offset[dim] <= wanted.whole[dim] &&
             wanted.shape[dim] <= wanted.whole[dim] - wanted.offset[dim];
  const int64_t numel = inside ? checked_numel(wanted.shape).value_or(-1) : -1;
  core::check(wanted.begin >= 0 && wanted.count >= 0 && wanted.begin <= numel &&
                  wanted.count <= numel - wanted.begin,
              "elements [{}, {} + {}) of the box {} at {} do not lie inside tensor '{}' {}",
              wanted.begin, wanted.begin, wanted.count, format_shape(wanted.shape),
              format_shape(wanted.offset), wanted.name, format_shape(wanted.whole));
}

}  // namespace

Piece whole_piece(const std::string& name, const std::vector<int64_t>& shape) {
  return {name,  shape, std::vector<int64_t>(shape.size(), 0),
          shape, 0,     checked_numel(shape).value_or(0)};
}

Entry entry_of(const Piece& piece, std::string_view dtype) {
  Entry entry{.name = piece.name, .dtype = std::string(dtype), .shape = piece.whole};
  if (piece.shape == piece.whole && piece.count == checked_numel(piece.whole)) return entry;
  entry.name = fmt::format("{}@{}+{}", piece.name, fmt::join(piece.offset, ","), piece.begin);
  entry.shape = {piece.count};
  return entry;
}

Checkpoint::Checkpoint(const std::string& folder) : folder_(folder), index_(read_index(folder)) {
  check_complete(index_, folder_ + "/" + kIndexName);
}

SafetensorsReader& Checkpoint::reader(const std::string& file, const std::string& tensor) {
  auto found = open_.find(file);
  if (found == open_.end()) {
    if (open_.size() >= kMostOpen)
      open_.erase(
          std::ranges::min_element(open_, {}, [](const auto& each) { return each.second.used; }));
    SafetensorsReader opened(folder_ + "/" + file, index_.files.at(file), tensor);
    found = open_.try_emplace(file, OpenFile{std::move(opened), 0}).first;
  }
  found->second.used = ++uses_;
  return found->second.reader;
}

const TensorInfo& Checkpoint::find(const Piece& wanted, std::string_view dtype) const {
  const auto found = index_.tensors.find(wanted.name);
  if (found == index_.tensors.end())
    throw ConfigError(fmt::format("{} has no tensor '{}' (it has {} others)", folder_, wanted.name,
                                  index_.tensors.size()));
  const TensorInfo& tensor = found->second;
  if (tensor.shape != wanted.whole)
    throw ConfigError(fmt::format("{} has tensor '{}' as {}, but {} is wanted", folder_,
                                  wanted.name, format_shape(tensor.shape),
                                  format_shape(wanted.whole)));
  if (tensor.dtype != dtype)
    throw ConfigError(fmt::format("{} has tensor '{}' as {}, but {} is wanted", folder_,
                                  wanted.name, tensor.dtype, dtype));
  return tensor;
}

int64_t Checkpoint::copy(const Piece& wanted, const StoredPiece& stored, std::string_view dtype,
                         char* to) {
  const BoxRange source{stored.offset, stored.shape, stored.begin, stored.count};
  const BoxRange target{wanted.offset, wanted.shape, wanted.begin, wanted.count};
  const int64_t each = dtype_bytes(dtype);
  SafetensorsReader* file = nullptr;
  int64_t copied = 0;
  for_each_common_run(source, target, [&](int64_t at, int64_t place, int64_t count) {
    if (file == nullptr) {
      file = &reader(stored.file, wanted.name);
      const Entry* entry = file->find(stored.key);
      if (entry == nullptr || entry->dtype != dtype || entry->bytes != stored.count * each)
        throw CheckpointError(fmt::format(
            "{}/{}: '{}' should be {} elements of {} of tensor '{}', but is {}", folder_,
            stored.file, stored.key, stored.count, dtype, wanted.name,
            entry == nullptr ? "not there" : entry->dtype + " " + format_shape(entry->shape)));
    }
    file->read(stored.key, at * each, count * each, to + place * each);
    copied += count;
  });
  return copied;
}

std::optional<TensorSource::Tensor> Checkpoint::tensor(const std::string& name) const {
  const auto found = index_.tensors.find(name);
  if (found == index_.tensors.end()) return std::nullopt;
  return Tensor{found->second.dtype, found->second.shape};
}

void Checkpoint::read(const Piece& wanted, std::string_view dtype, void* to) {
  check_wanted(wanted);
  const TensorInfo& tensor = find(wanted, dtype);
  int64_t left = wanted.count;
  for (const StoredPiece& stored : tensor.pieces)
    left -= copy(wanted, stored, dtype, static_cast<char*>(to));
  if (left != 0)
    throw CheckpointError(
        fmt::format("{}: {} elements of tensor '{}' are missing", folder_, left, wanted.name));
}

}  // namespace trireme::format
