#include "trireme/format/verify.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "trireme/core/error.h"
#include "trireme/format/dtype.h"
#include "trireme/format/folder.h"
#include "trireme/format/safetensors.h"

namespace trireme::format {

namespace {

constexpr size_t kMostNamed = 8;

/// A stored piece and its tensor.
struct TensorPiece {
  std::string tensor, dtype;
  StoredPiece piece;
};

std::vector<TensorPiece> uses_of(const Index& index, const std::string& file) {
  std::vector<TensorPiece> uses;
  for (const auto& [name, tensor] : index.tensors)
    for (const StoredPiece& piece : tensor.pieces)
      if (piece.file == file) uses.push_back({name, tensor.dtype, piece});
  return uses;
}

std::string listed(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMostNamed);
  const std::string first = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), ", "));
  return names.size() > shown ? fmt::format("{} and {} more", first, names.size() - shown) : first;
}

/// The tensors that have bytes in the block; all tensors of the file, if its header cannot be read.
std::vector<std::string> tensors_in(int64_t block, const std::vector<TensorPiece>& uses,
                                    const SafetensorsReader* reader) {
  std::set<std::string> names;
  const int64_t begin = block * kBlockBytes, end = begin + kBlockBytes;
  for (const TensorPiece& use : uses) {
    const Entry* entry = reader != nullptr ? reader->find(use.piece.key) : nullptr;
    if (entry == nullptr || (entry->begin < end && begin < entry->begin + entry->bytes))
      names.insert(use.tensor);
  }
  return {names.begin(), names.end()};
}

/// The file's header, if it can be parsed. Its checksum is not looked at.
std::optional<SafetensorsReader> try_header(const std::string& path) {
  try {
    return SafetensorsReader(path);
  } catch (const UnreadableError&) {
    throw;
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

void check_blocks(const std::string& path, const std::string& file, const FileInfo& info,
                  const std::vector<TensorPiece>& uses, std::vector<Damage>& found) {
  VerifiedFile blocks(path, info);
  const auto damaged = blocks.damaged_blocks();
  if (damaged.empty()) return;
  // If the first block is damaged, the header in it does not tell where tensors are.
  const auto reader = damaged[0] == 0 ? std::nullopt : try_header(path);
  for (const int64_t block : damaged) {
    Damage damage{file, block, tensors_in(block, uses, reader ? &*reader : nullptr), ""};
    damage.sentence = fmt::format(
        "{}: block {} (bytes {} to {}) does not match its checksum; it {} {}", path, block,
        block * kBlockBytes, std::min((block + 1) * kBlockBytes, info.bytes) - 1,
        reader ? "holds" : "has the header, and may hold parts of", listed(damage.tensors));
    found.push_back(std::move(damage));
  }
}

/// A file that matches its checksums must also hold what the index says.
void check_entries(const std::string& path, const std::string& file,
                   const std::vector<TensorPiece>& uses, std::vector<Damage>& found) {
  const SafetensorsReader reader(path);
  for (const auto& [tensor, dtype, piece] : uses) {
    const Entry* entry = reader.find(piece.key);
    if (entry != nullptr && entry->dtype == dtype &&
        entry->bytes == piece.count * dtype_bytes(dtype))
      continue;
    found.push_back(
        {file,
         -1,
         {tensor},
         fmt::format(
             "{}: '{}' should be {} elements of {} of tensor '{}', but is {}", path, piece.key,
             piece.count, dtype, tensor,
             entry == nullptr ? "not there" : entry->dtype + " " + format_shape(entry->shape))});
  }
}

/// The damage where nothing of a file can be used.
Damage all_of(const std::string& file, const std::vector<TensorPiece>& uses,
              const CheckpointError& why) {
  const auto names = tensors_in(0, uses, nullptr);
  return {file, -1, names, fmt::format("{}; it holds {}", why.what(), listed(names))};
}

}  // namespace

std::vector<Damage> find_missing(const std::string& folder, const Index& index) {
  std::vector<Damage> found;
  for (const auto& [file, info] : index.files) {
    try {
      const VerifiedFile opened(folder + "/" + file, info);
    } catch (const UnreadableError&) {
      throw;
    } catch (const CheckpointError& error) {
      found.push_back(all_of(file, uses_of(index, file), error));
    }
  }
  return found;
}

std::vector<Damage> find_damage(const std::string& folder) {
  std::vector<Damage> found;
  Index index;
  try {
    index = read_index(folder);
    check_complete(index, folder + "/" + kIndexName);
    if (const auto wrong = wrong_name(folder, index.step))
      found.push_back({kIndexName, -1, {}, *wrong});
  } catch (const UnreadableError&) {
    throw;
  } catch (const CheckpointError& error) {
    found.push_back({kIndexName, -1, {}, error.what()});
  }
  for (const auto& [file, info] : index.files) {
    const std::string path = folder + "/" + file;
    const auto uses = uses_of(index, file);
    const size_t before = found.size();
    try {
      check_blocks(path, file, info, uses, found);
      if (found.size() == before) check_entries(path, file, uses, found);
    } catch (const UnreadableError&) {
      throw;
    } catch (const CheckpointError& error) {
      found.push_back(all_of(file, uses, error));
    }
  }
  return found;
}

}  // namespace trireme::format
