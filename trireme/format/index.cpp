#include "trireme/format/index.h"

#include <utility>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/format/dtype.h"
#include "trireme/format/json_object.h"

namespace trireme::format {

namespace {

constexpr int64_t kMostIndexBytes = core::kGiB;
constexpr int kMostIndexDepth = 64;

/// A plain name: an index must not lead out of its folder.
bool is_file_name(const std::string& name) {
  return !name.empty() && name != "." && name.find("..") == name.npos &&
         name.find('/') == name.npos && name.find('\\') == name.npos &&
         name.find('\0') == name.npos;
}

FileInfo parse_file(const std::string& name, const core::Json& json, const std::string& path) {
  const JsonObject object(json, path, fmt::format("file '{}'", name));
  if (!is_file_name(name)) object.fail("is not a plain file name");
  FileInfo file{.bytes = object.number("bytes"), .block_bytes = object.number("block_bytes")};
  if (file.block_bytes != kBlockBytes)
    object.fail(fmt::format("has blocks of {} bytes, not {}", file.block_bytes, kBlockBytes));
  const core::Json& checksums = object.at("checksums");
  if (!checksums.is_array()) object.fail("has 'checksums' that are not a list");
  for (const core::Json& each : checksums) {
    if (!each.is_string() || each.get_ref<const std::string&>().size() != 32)
      object.fail("has a checksum that is not 32 hexadecimal digits");
    file.checksums.push_back(each.get<std::string>());
  }
  if (static_cast<int64_t>(file.checksums.size()) != num_blocks(file.bytes))
    object.fail(fmt::format("has {} bytes but {} checksums", file.bytes, file.checksums.size()));
  return file;
}

void check_piece(const StoredPiece& piece, const TensorInfo& tensor, const Index& index,
                 const JsonObject& object) {
  const auto file = index.files.find(piece.file);
  if (file == index.files.end())
    object.fail(fmt::format("lies in '{}', which is not among the files", piece.file));
  bool inside =
      piece.offset.size() == tensor.shape.size() && piece.shape.size() == tensor.shape.size();
  for (size_t dim = 0; inside && dim < tensor.shape.size(); ++dim)
    inside = piece.offset[dim] <= tensor.shape[dim] &&
             piece.shape[dim] <= tensor.shape[dim] - piece.offset[dim];
  if (!inside)
    object.fail(fmt::format("is {} at {}, which is not inside {}", format_shape(piece.shape),
                            format_shape(piece.offset), format_shape(tensor.shape)));
  const int64_t numel = checked_numel(piece.shape).value();  // at most the whole's, which fits
  if (piece.begin > numel || piece.count > numel - piece.begin)
    object.fail(fmt::format("is elements {} to {} of a box of {}", piece.begin,
                            static_cast<uint64_t>(piece.begin) + static_cast<uint64_t>(piece.count),
                            numel));
  if (piece.count * dtype_bytes(tensor.dtype) > file->second.bytes)
    object.fail(fmt::format("has more elements than its file '{}' can hold", piece.file));
}

TensorInfo parse_tensor(const std::string& name, const core::Json& json, const Index& index,
                        const std::string& path) {
  const JsonObject object(json, path, fmt::format("tensor '{}'", name));
  TensorInfo tensor{.dtype = object.text("dtype"), .shape = object.numbers("shape"), .pieces = {}};
  if (dtype_bytes(tensor.dtype) == 0)
    object.fail(fmt::format("has dtype {}, which is none of {}", tensor.dtype, known_dtypes()));
  if (!checked_bytes(tensor.dtype, tensor.shape))
    object.fail(fmt::format("has the invalid shape {}", format_shape(tensor.shape)));
  const core::Json& pieces = object.at("pieces");
  if (!pieces.is_array()) object.fail("has 'pieces' that are not a list");
  for (const core::Json& each : pieces) {
    const JsonObject part(each, path,
                          fmt::format("tensor '{}': piece {}", name, tensor.pieces.size()));
    tensor.pieces.push_back({part.text("file"), part.text("key"), part.numbers("offset"),
                             part.numbers("shape"), part.number("begin"), part.number("count")});
    check_piece(tensor.pieces.back(), tensor, index, part);
  }
  return tensor;
}

core::Json piece_json(const StoredPiece& piece) {
  return {{"file", piece.file},   {"key", piece.key},     {"offset", piece.offset},
          {"shape", piece.shape}, {"begin", piece.begin}, {"count", piece.count}};
}

}  // namespace

int64_t Index::total_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, file] : files) bytes += file.bytes;
  return bytes;
}

core::Json json_of(const Index& index) {
  core::Json tensors = core::Json::object(), files = core::Json::object();
  for (const auto& [name, tensor] : index.tensors) {
    core::Json pieces = core::Json::array();
    for (const StoredPiece& piece : tensor.pieces) pieces.push_back(piece_json(piece));
    tensors[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"pieces", pieces}};
  }
  for (const auto& [name, file] : index.files)
    files[name] = {
        {"bytes", file.bytes}, {"block_bytes", file.block_bytes}, {"checksums", file.checksums}};
  return {{"format", "trireme checkpoint"}, {"version", index.version},  {"step", index.step},
          {"tensors", std::move(tensors)},  {"files", std::move(files)}, {"extra", index.extra}};
}

Index index_of(const core::Json& json, const std::string& path) {
  const JsonObject object(json, path, "the index");
  const int64_t version = object.number("version");
  if (version > kIndexVersion)
    throw ConfigError(
        fmt::format("{} has version {}, but this program reads version {}: a newer Trireme wrote "
                    "it, and is needed to read it",
                    path, version, kIndexVersion));
  if (version != kIndexVersion)
    object.fail(fmt::format("has version {}, which never existed", version));
  Index index;
  index.step = object.number("step");
  const JsonObject files(object.at("files"), path, "'files'");
  const JsonObject tensors(object.at("tensors"), path, "'tensors'");
  for (const auto& [name, file] : object.at("files").items())
    index.files[name] = parse_file(name, file, path);
  for (const auto& [name, tensor] : object.at("tensors").items())
    index.tensors[name] = parse_tensor(name, tensor, index, path);
  index.extra = object.at("extra");
  return index;
}

std::string to_text(const Index& index) {
  core::Json json = json_of(index);
  std::string body;
  try {
    body = json.dump();
  } catch (const core::Json::exception&) {
    throw MisuseError("names of tensors and the extra values must be UTF-8");
  }
  json["checksum"] = core::hash128_hex(body.data(), body.size());
  return json.dump(1) + "\n";
}

Index from_text(std::string_view text, const std::string& path) {
  core::Json json = parse_untrusted(text, path, kMostIndexDepth);
  const JsonObject object(json, path, "the index");
  if (object.number("version") != kIndexVersion) return index_of(json, path);  // it throws
  const std::string checksum = object.text("checksum");
  json.erase("checksum");
  const std::string body = json.dump();
  if (core::hash128_hex(body.data(), body.size()) != checksum)
    throw CheckpointError(fmt::format("{} is damaged: it does not match its own checksum", path));
  return index_of(json, path);
}

Index read_index(const std::string& folder) {
  const std::string path = folder + "/" + kIndexName;
  return from_text(read_file(path, kMostIndexBytes), path);
}

}  // namespace trireme::format
