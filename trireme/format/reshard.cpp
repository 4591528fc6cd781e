#include "trireme/format/reshard.h"

#include <algorithm>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/format/dtype.h"
#include "trireme/format/folder.h"
#include "trireme/format/load.h"
#include "trireme/layout/reduction.h"

namespace trireme::format {

namespace {

class Reshard {
 public:
  Reshard(Checkpoint& from, std::string place, const ReshardOptions& options)
      : from_(from), place_(std::move(place)), options_(options) {
    index_.step = from.index().step;
    index_.extra = from.index().extra;
    for (const auto& [name, tensor] : from.index().tensors) {
      index_.tensors[name] = {tensor.dtype, tensor.shape, {}};
      all_bytes_ += checked_bytes(tensor.dtype, tensor.shape).value();
    }
  }

  void write() {
    for (int rank = 0; rank < options_.ranks; ++rank) write_part(rank);
    check_complete(index_, place_);
    write_file(place_ + "/" + kIndexName, to_text(index_));
  }

 private:
  std::vector<Piece> pieces_of(const std::string& name, const TensorInfo& tensor, int rank) const {
    const Piece whole = whole_piece(name, tensor.shape);
    if (options_.ranks == 1 || (whole.count == 0 && rank == 0)) return {whole};
    if (whole.count == 0) return {};
    return trireme::pieces_of(name, Layout(tensor.shape), {.shard = rank},
                              {.shard = options_.ranks}, {.sharding = Sharding::Parameters});
  }

  void write_part(int rank) {
    const std::string file = fmt::format("part-{:05}.safetensors", rank);
    std::vector<Piece> pieces;
    std::vector<Entry> entries;
    for (auto& [name, tensor] : index_.tensors) {
      for (Piece& piece : pieces_of(name, tensor, rank)) {
        entries.push_back(entry_of(piece, tensor.dtype));
        tensor.pieces.push_back(
            {file, entries.back().name, piece.offset, piece.shape, piece.begin, piece.count});
        pieces.push_back(std::move(piece));
      }
    }
    SafetensorsWriter writer(place_ + "/" + file, std::move(entries),
                             {{"format", "pt"}, {"step", std::to_string(index_.step)}});
    for (const Piece& piece : pieces) copy(piece, writer);
    index_.files[file] = writer.finish();
    tell(rank + 1);
  }

  void copy(const Piece& piece, SafetensorsWriter& writer) {
    const std::string& dtype = index_.tensors.at(piece.name).dtype;
    const int64_t each = dtype_bytes(dtype), end = piece.begin + piece.count;
    Piece part = piece;
    for (part.begin = piece.begin; part.begin < end; part.begin += part.count) {
      part.count = std::min(kReshardBytes / each, end - part.begin);
      const int64_t bytes = part.count * each;
      if (static_cast<int64_t>(buffer_.size()) < bytes) buffer_.resize(static_cast<size_t>(bytes));
      from_.read(part, dtype, buffer_.data());
      writer.append(buffer_.data(), bytes);
      done_bytes_ += bytes;
      tell(static_cast<int>(index_.files.size()));
    }
  }

  void tell(int done_files) const {
    if (options_.progress) options_.progress({done_bytes_, all_bytes_, done_files, options_.ranks});
  }

  Checkpoint& from_;
  std::string place_;
  const ReshardOptions& options_;
  Index index_;
  std::vector<char> buffer_;
  int64_t done_bytes_ = 0, all_bytes_ = 0;
};

}  // namespace

void reshard(const std::string& from, const std::string& to, const ReshardOptions& options) {
  core::check(options.ranks >= 1, "a checkpoint must be for at least 1 rank, not {}",
              options.ranks);
  Checkpoint saved(from);
  const std::string place = begin_beside(to);
  try {
    Reshard(saved, place, options).write();
    commit_beside(to);
  } catch (...) {
    abandon_beside(to);
    throw;
  }
}

}  // namespace trireme::format
