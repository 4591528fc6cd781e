#include "trireme/exchange/import.h"

#include <algorithm>
#include <vector>

#include "trireme/config/text.h"
#include "trireme/config/validate.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/exchange/carried.h"
#include "trireme/exchange/hf_weights.h"
#include "trireme/exchange/read_ahead.h"
#include "trireme/format/cast.h"
#include "trireme/format/dtype.h"
#include "trireme/format/file.h"
#include "trireme/format/folder.h"
#include "trireme/format/load.h"

namespace trireme::exchange {

namespace {

constexpr int64_t kBlockBytes = 4 * core::kMiB;  // stays in a cache
/// Blocks of a transposed tensor are strips of theirs: wide ones, where it is larger than this.
constexpr int64_t kStripBytes = 32 * core::kMiB;
constexpr const char* kPart = "part-00000.safetensors";

class Import {
 public:
  Import(HfWeights& from, std::string place, const ImportOptions& options)
      : from_(from), place_(std::move(place)), options_(options) {}

  void write(const config::Model& model) {
    std::vector<format::Entry> entries;
    for (const MappedTensor& tensor : from_.tensors()) {
      const auto there = *from_.tensor(tensor.name);
      const Piece whole = format::whole_piece(tensor.name, tensor.shape);
      entries.push_back(format::entry_of(whole, dtype_of(there)));
      index_.tensors[tensor.name] = {
          dtype_of(there),
          tensor.shape,
          {{kPart, tensor.name, whole.offset, whole.shape, 0, whole.count}}};
      all_bytes_ += format::checked_bytes(dtype_of(there), tensor.shape).value();
    }
    format::SafetensorsWriter writer(place_ + "/" + kPart, std::move(entries), {{"format", "pt"}});
    read_ahead(
        [&](const BytesVisit& put) {
          for (const MappedTensor& tensor : from_.tensors()) read(tensor, put);
        },
        [&](const char* bytes, int64_t count) {
          writer.append(bytes, count);
          done_bytes_ += count;
          if (options_.progress) options_.progress({done_bytes_, all_bytes_});
        });
    index_.files[kPart] = writer.finish();
    config::Config config;
    config.model = model;
    index_.extra["config"] = config::to_toml(config);
    format::check_complete(index_, place_);
    format::write_file(place_ + "/" + format::kIndexName, format::to_text(index_));
  }

 private:
  std::string dtype_of(const HfWeights::Tensor& tensor) const {
    return options_.dtype.empty() ? tensor.dtype : options_.dtype;
  }

  void read(const MappedTensor& tensor, const BytesVisit& put) {
    const std::string stored = from_.tensor(tensor.name)->dtype;
    const std::string& dtype = index_.tensors.at(tensor.name).dtype;
    const int64_t each = format::dtype_bytes(stored), to_each = format::dtype_bytes(dtype);
    Piece part = format::whole_piece(tensor.name, tensor.shape);
    const int64_t end = part.count;
    const bool turned = tensor.parts.front().form == Form::Transposed;
    const int64_t row = tensor.columns(), most = turned ? kStripBytes : kBlockBytes;
    const int64_t rows = std::max<int64_t>(1, most / (std::max(each, to_each) * row));
    for (; part.begin < end; part.begin += part.count) {
      part.count = std::min(rows * row, end - part.begin);
      grow(block_, part.count * each);
      from_.read(part, stored, block_.data());
      if (dtype == stored) {
        put(block_.data(), part.count * each);
        continue;
      }
      grow(cast_, part.count * to_each);
      format::cast(stored, block_.data(), dtype, cast_.data(), part.count);
      put(cast_.data(), part.count * to_each);
    }
  }

  static void grow(std::vector<char>& buffer, int64_t bytes) {
    if (static_cast<int64_t>(buffer.size()) < bytes) buffer.resize(static_cast<std::size_t>(bytes));
  }

  HfWeights& from_;
  std::string place_;
  const ImportOptions& options_;
  format::Index index_;
  std::vector<char> block_, cast_;
  int64_t done_bytes_ = 0, all_bytes_ = 0;
};

}  // namespace

void import_folder(const std::string& folder, const std::string& to, const ImportOptions& options) {
  const Settings settings = read_settings(folder);
  config::Model model = model_of(family_of(settings), settings);
  model.vocab = options.vocab.value_or(model.vocab);
  HfWeights weights(folder, model);
  const std::string place = format::begin_beside(to);
  try {
    Import(weights, place, options).write(model);
    copy_files(std::vector<std::string_view>{kConfigName, kGenerationName}, folder, place);
    copy_files(kTokenizerNames, folder, place);
    format::commit_beside(to);
  } catch (...) {
    format::abandon_beside(to);
    throw;
  }
}

}  // namespace trireme::exchange
