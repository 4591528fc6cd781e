#include "trireme/exchange/hf_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "trireme/core/error.h"
#include "trireme/exchange/rows.h"
#include "trireme/exchange/transpose.h"
#include "trireme/format/cast.h"
#include "trireme/format/dtype.h"

namespace trireme::exchange {

using format::dtype_bytes;

HfWeights::HfWeights(const std::string& folder, const config::Model& ours)
    : settings_(read_settings(folder)), family_(family_of(settings_)), folder_(folder) {
  tensors_ = expand(family_.table, ours, theirs());
  for (std::size_t i = 0; i < tensors_.size(); ++i) places_[tensors_[i].name] = i;
  // A file of the bare model, without its head, lacks the prefix.
  const auto names = folder_.names();
  if (std::ranges::none_of(names,
                           [&](const auto& name) { return name.starts_with(family_.base_prefix); }))
    prefix_ = family_.base_prefix;
  check_names();
  check_shapes();
}

std::string HfWeights::their_name(const std::string& name) const {
  return !prefix_.empty() && name.starts_with(prefix_) ? name.substr(prefix_.size()) : name;
}

const format::Entry& HfWeights::entry_of(const Part& part) const {
  return *folder_.find(their_name(part.theirs));
}

/// Every tensor of the model is there, and no other.
void HfWeights::check_names() const {
  std::map<std::string, bool> wanted;
  for (const MappedTensor& tensor : tensors_)
    for (const Part& part : tensor.parts) wanted[their_name(part.theirs)] = true;
  for (const auto& [name, unused] : wanted)
    if (folder_.find(name) == nullptr)
      throw ConfigError(fmt::format("{} has no tensor '{}', which {} of this {} needs",
                                    folder_.path(), name, family_.architecture, kConfigName));
  for (const std::string& name : folder_.names()) {
    const bool ignored = std::ranges::any_of(
        family_.ignored, [&](std::string_view end) { return name.ends_with(end); });
    // A tied head may be stored once more.
    if (wanted.contains(name) || ignored || name == "lm_head.weight") continue;
    throw ConfigError(fmt::format(
        "{} has a tensor '{}' {}, which {} of this {} does not have", folder_.path(), name,
        format::format_shape(folder_.find(name)->shape), family_.architecture, kConfigName));
  }
}

void HfWeights::check_shapes() const {
  for (const MappedTensor& tensor : tensors_)
    for (const Part& part : tensor.parts) {
      const format::Entry& entry = entry_of(part);
      if (entry.shape != part.shape)
        throw ConfigError(fmt::format("{} has tensor '{}' as {}, but by its {} it is {}",
                                      folder_.path(), entry.name, format::format_shape(entry.shape),
                                      kConfigName, format::format_shape(part.shape)));
      if (!format::is_floating(entry.dtype))
        throw ConfigError(fmt::format(
            "{} has tensor '{}' in {}; weights are read in F32, BF16, F16 and F64, so load it in "
            "transformers, convert it and save_pretrained it again",
            folder_.path(), entry.name, entry.dtype));
    }
}

std::string HfWeights::dtype_of(const MappedTensor& tensor) const {
  std::string dtype = entry_of(tensor.parts.front()).dtype;
  for (const Part& part : tensor.parts) dtype = format::wider(dtype, entry_of(part).dtype);
  return dtype;
}

std::optional<HfWeights::Tensor> HfWeights::tensor(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) return std::nullopt;
  const MappedTensor& mapped = tensors_[found->second];
  return Tensor{dtype_of(mapped), mapped.shape};
}

void HfWeights::read(const Piece& wanted, std::string_view dtype, void* to) {
  const auto there = tensor(wanted.name);
  if (!there)
    throw ConfigError(fmt::format("{} has no weights for '{}'", folder_.path(), wanted.name));
  if (there->shape != wanted.whole || there->dtype != dtype)
    throw ConfigError(fmt::format("{} has '{}' as {} {}, but {} {} is wanted", folder_.path(),
                                  wanted.name, there->dtype, format::format_shape(there->shape),
                                  dtype, format::format_shape(wanted.whole)));
  const MappedTensor& mapped = tensors_[places_.at(wanted.name)];
  const int64_t each = dtype_bytes(dtype);
  auto* next = static_cast<char*>(to);
  for_each_block(wanted, [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
    read_block(mapped, {row, rows, column, columns}, next);
    next += rows * columns * each;
  });
}

/// The block's rows come from one part after the other.
void HfWeights::read_block(const MappedTensor& tensor, const Block& block, char* to) {
  const int64_t row_bytes = block.columns * dtype_bytes(dtype_of(tensor));
  for (int64_t done = 0; done < block.rows;) {
    const int64_t row = block.row + done;
    Block rest = {row, block.rows - done, block.column, block.columns};
    const auto part = std::ranges::find_if(
        tensor.parts, [&](const Part& one) { return row >= one.row && row < one.row + one.rows; });
    if (part == tensor.parts.end()) {
      read_padding(tensor, rest, to + done * row_bytes);  // the last rows
      return;
    }
    rest.rows = std::min(rest.rows, part->row + part->rows - row);
    read_part(tensor, *part, rest, to + done * row_bytes);
    done += rest.rows;
  }
}

void HfWeights::read_part(const MappedTensor& tensor, const Part& part, const Block& block,
                          char* to) {
  const std::string dtype = dtype_of(tensor), stored = entry_of(part).dtype;
  const Block inside = {block.row - part.row, block.rows, block.column, block.columns};
  if (stored == dtype) return read_stored(part, inside, to);
  const int64_t count = block.rows * block.columns;
  std::vector<char> narrow(static_cast<std::size_t>(count * dtype_bytes(stored)));
  read_stored(part, inside, narrow.data());
  format::cast(stored, narrow.data(), dtype, to, count);
}

/// `block` counts rows from the part's first.
void HfWeights::read_stored(const Part& part, const Block& block, char* to) {
  if (part.form == Form::Transposed) return read_transposed(part, block, to);
  const int64_t columns = part.shape.size() == 1 ? 1 : part.shape[1];
  if (part.form == Form::Same) return read_rows(part, columns, block, to);
  const int64_t row_bytes = block.columns * dtype_bytes(entry_of(part).dtype);
  for (int64_t i = 0; i < block.rows; ++i)
    read_rows(part, columns,
              {halves_row(block.row + i, part.head_rows), 1, block.column, block.columns},
              to + i * row_bytes);
}

void HfWeights::read_rows(const Part& part, int64_t columns, const Block& block, char* to) {
  const format::Entry& entry = entry_of(part);
  const int64_t each = dtype_bytes(entry.dtype), bytes = block.columns * each;
  const int64_t first = (block.row * columns + block.column) * each;
  if (block.columns == columns) return folder_.read(entry.name, first, block.rows * bytes, to);
  for (int64_t i = 0; i < block.rows; ++i)
    folder_.read(entry.name, first + i * columns * each, bytes, to + i * bytes);
}

/// Their rows are our columns: a block of ours is one of theirs, turned over.
void HfWeights::read_transposed(const Part& part, const Block& block, char* to) {
  const int64_t each = dtype_bytes(entry_of(part).dtype);
  turned_.resize(static_cast<std::size_t>(block.rows * block.columns * each));
  read_rows(part, part.shape[1], {block.column, block.columns, block.row, block.rows},
            turned_.data());
  transpose(turned_.data(), block.columns, block.rows, each, to);
}

void HfWeights::read_padding(const MappedTensor& tensor, const Block& block, char* to) {
  const int64_t each = dtype_bytes(dtype_of(tensor)), bytes = block.columns * each;
  const std::vector<char>& mean = mean_row(tensor);
  for (int64_t i = 0; i < block.rows; ++i)
    std::memcpy(to + i * bytes, mean.data() + block.column * each, static_cast<std::size_t>(bytes));
}

const std::vector<char>& HfWeights::mean_row(const MappedTensor& tensor) {
  auto [mean, is_new] = means_.try_emplace(tensor.name);
  if (!is_new) return mean->second;
  const Part& part = tensor.parts.back();
  MeanOfRows sum(dtype_of(tensor), tensor.columns());
  const int64_t at_once = sum.rows_at_once();
  std::vector<char> rows(static_cast<std::size_t>(at_once * sum.row_bytes()));
  for (int64_t row = 0; row < part.rows; row += at_once) {
    const int64_t count = std::min(at_once, part.rows - row);
    read_block(tensor, {part.row + row, count, 0, tensor.columns()}, rows.data());
    sum.add(rows.data(), count);
  }
  return mean->second = sum.mean();
}

}  // namespace trireme::exchange
