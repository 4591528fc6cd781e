#include "trireme/format/parts.h"

#include "trireme/format/load.h"
#include "trireme/format/safetensors.h"

namespace trireme::format {

core::Json write_part(const std::string& folder, const std::string& file, int64_t step,
                      std::span<const PartItem> items, const std::function<void(size_t)>& written) {
  std::vector<Entry> entries;
  core::Json pieces = core::Json::array();
  for (const PartItem& item : items) {
    const Piece& piece = item.piece;
    entries.push_back(entry_of(piece, item.dtype));
    pieces.push_back({{"name", piece.name},
                      {"dtype", item.dtype},
                      {"whole", piece.whole},
                      {"key", entries.back().name},
                      {"offset", piece.offset},
                      {"shape", piece.shape},
                      {"begin", piece.begin},
                      {"count", piece.count}});
  }
  SafetensorsWriter writer(folder + "/" + file, std::move(entries),
                           {{"format", "pt"}, {"step", std::to_string(step)}});
  for (size_t i = 0; i < items.size(); ++i) {
    for (const auto& bytes : items[i].memory)
      writer.append(bytes.data(), static_cast<int64_t>(bytes.size()));
    if (written) written(i);
  }
  const FileInfo info = writer.finish();
  return {{"file", file},
          {"bytes", info.bytes},
          {"block_bytes", info.block_bytes},
          {"checksums", info.checksums},
          {"pieces", pieces}};
}

Index index_of_parts(const std::string& folder, int64_t step, const std::vector<core::Json>& notes,
                     core::Json extra) {
  Index index;
  index.step = step;
  index.extra = std::move(extra);
  for (const core::Json& note : notes) {
    const std::string file = note.at("file");
    index.files[file] = {note.at("bytes"), note.at("block_bytes"),
                         note.at("checksums").get<std::vector<std::string>>()};
    for (const auto& piece : note.at("pieces")) {
      TensorInfo& tensor = index.tensors[piece.at("name")];
      tensor.dtype = piece.at("dtype");
      tensor.shape = piece.at("whole").get<std::vector<int64_t>>();
      tensor.pieces.push_back(
          {file, piece.at("key"), piece.at("offset").get<std::vector<int64_t>>(),
           piece.at("shape").get<std::vector<int64_t>>(), piece.at("begin"), piece.at("count")});
    }
  }
  check_complete(index, folder);
  return index;
}

}  // namespace trireme::format
