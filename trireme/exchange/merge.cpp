#include "trireme/exchange/merge.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "trireme/config/text.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/exchange/carried.h"
#include "trireme/exchange/export_settings.h"
#include "trireme/exchange/fingerprint.h"
#include "trireme/exchange/hf_folder.h"
#include "trireme/exchange/start.h"
#include "trireme/format/cast.h"
#include "trireme/format/dtype.h"
#include "trireme/format/file.h"
#include "trireme/format/folder.h"
#include "trireme/format/load.h"

namespace trireme::exchange {

namespace {

constexpr int64_t kBlockElems = core::kMiB;
constexpr const char* kMerged = "part-00000.safetensors";
constexpr std::string_view kBaseWeight = ".weight", kLoraA = ".lora_A.weight",
                           kLoraB = ".lora_B.weight";

/// The name of a layer, if `name` is this tensor of it.
std::optional<std::string> layer_of(const std::string& name, std::string_view tensor) {
  if (!name.ends_with(tensor) || name.find('/') != name.npos) return {};
  return name.substr(0, name.size() - tensor.size());
}

/// A [rank, width] and B [rows, rank] of one weight.
struct Factors {
  std::vector<double> in, out;
  int64_t rank = 0, width = 0;
};

class Merge {
 public:
  Merge(format::Checkpoint& adapters, const StartWeights& base, const std::string& base_name,
        const MergeOptions& options)
      : adapters_(adapters),
        base_(base),
        base_name_(base_name),
        options_(options),
        scale_(adapters.index().extra.at("lora").at("scale").get<double>()) {
    index_.step = adapters.index().step;
    for (const std::string& name : base_.names) {
      const auto tensor = base_.source->tensor(name).value();
      const Piece whole = format::whole_piece(name, tensor.shape);
      index_.tensors[name] = {
          tensor.dtype, tensor.shape, {{kMerged, name, whole.offset, whole.shape, 0, whole.count}}};
      all_bytes_ += format::checked_bytes(tensor.dtype, tensor.shape).value();
    }
    check_weights();
  }

  void write(const std::string& place, config::Config config) {
    std::vector<format::Entry> entries;
    for (const std::string& name : base_.names) {
      const format::TensorInfo& tensor = index_.tensors.at(name);
      entries.push_back(format::entry_of(format::whole_piece(name, tensor.shape), tensor.dtype));
    }
    format::SafetensorsWriter writer(place + "/" + kMerged, std::move(entries), {{"format", "pt"}});
    for (const std::string& name : base_.names) copy(name, index_.tensors.at(name), writer);
    index_.files[kMerged] = writer.finish();
    config.lora = {};
    index_.extra["config"] = config::to_toml(config);
    format::check_complete(index_, place);
    format::write_file(place + "/" + format::kIndexName, format::to_text(index_));
  }

 private:
  /// Every adapter must find its weight.
  void check_weights() const {
    for (const auto& [name, in] : adapters_.index().tensors) {
      const auto layer = layer_of(name, kLoraA);
      if (!layer) continue;
      const std::string weight = *layer + std::string(kBaseWeight);
      const auto found = index_.tensors.find(weight);
      if (found == index_.tensors.end())
        throw ConfigError(fmt::format("{} has no '{}', which {} adapts: it is not its base",
                                      base_name_, weight, adapters_.folder()));
      const auto other = adapters_.index().tensors.find(*layer + std::string(kLoraB));
      if (other == adapters_.index().tensors.end() || in.shape.size() != 2 ||
          other->second.shape.size() != 2 || other->second.shape[1] != in.shape[0])
        throw CheckpointError(fmt::format("{}: the two parts of the adapter of '{}' do not fit",
                                          adapters_.folder(), *layer));
      const std::vector shape = {other->second.shape[0], in.shape[1]};
      if (found->second.shape != shape)
        throw ConfigError(
            fmt::format("'{}' of {} is {}, but {} adapts one of {}: it is not its base", weight,
                        base_name_, format::format_shape(found->second.shape), adapters_.folder(),
                        format::format_shape(shape)));
      if (!format::is_floating(found->second.dtype))
        throw ConfigError(fmt::format("'{}' of {} is {}, to which nothing can be added", weight,
                                      base_name_, found->second.dtype));
    }
  }

  std::vector<double> read_whole(const std::string& name) {
    const format::TensorInfo& tensor = adapters_.index().tensors.at(name);
    const Piece whole = format::whole_piece(name, tensor.shape);
    std::vector<char> stored(
        static_cast<std::size_t>(format::checked_bytes(tensor.dtype, tensor.shape).value()));
    adapters_.read(whole, tensor.dtype, stored.data());
    std::vector<double> values(static_cast<std::size_t>(whole.count));
    format::cast(tensor.dtype, stored.data(), "F64", values.data(), whole.count);
    return values;
  }

  std::optional<Factors> factors_of(const std::string& name) {
    const auto layer = layer_of(name, kBaseWeight);
    if (!layer) return {};
    const std::string in = *layer + std::string(kLoraA), out = *layer + std::string(kLoraB);
    const auto found = adapters_.index().tensors.find(in);
    if (found == adapters_.index().tensors.end()) return {};
    return Factors{.in = read_whole(in),
                   .out = read_whole(out),
                   .rank = found->second.shape.at(0),
                   .width = found->second.shape.at(1)};
  }

  void copy(const std::string& name, const format::TensorInfo& tensor,
            format::SafetensorsWriter& writer) {
    const auto factors = factors_of(name);
    const int64_t each = format::dtype_bytes(tensor.dtype);
    Piece part = format::whole_piece(name, tensor.shape);
    const int64_t end = part.count, row = tensor.shape.size() > 1 ? tensor.shape.back() : 1;
    const int64_t most = std::max<int64_t>(1, kBlockElems / std::max<int64_t>(1, row)) * row;
    for (; part.begin < end; part.begin += part.count) {
      part.count = std::min(most, end - part.begin);
      block_.resize(static_cast<std::size_t>(part.count * each));
      format::TensorSource& from = trained_along(name) ? adapters_ : *base_.source;
      from.read(part, tensor.dtype, block_.data());
      if (factors) add(*factors, part, tensor.dtype);
      writer.append(block_.data(), part.count * each);
      done_bytes_ += part.count * each;
      if (options_.progress) options_.progress({done_bytes_, all_bytes_});
    }
  }

  /// Buffers, such as running means, go on while adapters are trained.
  bool trained_along(const std::string& name) const {
    const auto found = adapters_.tensor(name);
    return found && name.starts_with("buffer/") && found->dtype == index_.tensors.at(name).dtype;
  }

  /// Adds scale B A to the rows that are in memory.
  void add(const Factors& factors, const Piece& part, std::string_view dtype) {
    values_.resize(static_cast<std::size_t>(part.count));
    format::cast(dtype, block_.data(), "F64", values_.data(), part.count);
    std::vector<double> moved(static_cast<std::size_t>(factors.width));
    for (int64_t at = 0; at < part.count; at += factors.width) {
      const int64_t row = (part.begin + at) / factors.width;
      std::fill(moved.begin(), moved.end(), 0);
      for (int64_t r = 0; r < factors.rank; ++r) {
        const double b = factors.out[static_cast<std::size_t>(row * factors.rank + r)];
        const double* a = factors.in.data() + r * factors.width;
        for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += b * a[i];
      }
      for (std::size_t i = 0; i < moved.size(); ++i)
        values_[static_cast<std::size_t>(at) + i] += scale_ * moved[i];
    }
    format::cast("F64", values_.data(), dtype, block_.data(), part.count);
  }

  format::Checkpoint& adapters_;
  const StartWeights& base_;
  const std::string& base_name_;
  const MergeOptions& options_;
  double scale_;
  format::Index index_;
  std::vector<char> block_;
  std::vector<double> values_;
  int64_t done_bytes_ = 0, all_bytes_ = 0;
};

}  // namespace

void merge_adapters(const std::string& adapters, const std::string& to,
                    const MergeOptions& options) {
  format::Checkpoint saved(adapters);
  const core::Json& extra = saved.index().extra;
  if (!extra.contains("lora"))
    throw ConfigError(
        fmt::format("{} holds no adapters: its run had lora.rank = 0", saved.folder()));
  config::Config config = config_of(saved);
  if (!options.base.empty()) config.model.from = options.base;
  if (config.model.from.empty())
    throw ConfigError(fmt::format(
        "{} adapts the weights that seed {} draws, which are in no folder; save them by "
        "run.steps=0 without lora.*, and name that run by --base",
        saved.folder(), config.run.seed));
  const StartWeights base = open_weights(config);
  const core::Json known = extra.at("lora").at("base").value("content", core::Json());
  if (known.is_string() && known.get<std::string>() != fingerprint(base))
    throw ConfigError(fmt::format("{} has other weights than those that {} adapts",
                                  config.model.from, saved.folder()));
  const std::string place = format::begin_beside(to);
  try {
    Merge(saved, base, config.model.from, options).write(place, config);
    if (is_hf_folder(config.model.from)) copy_files(kTokenizerNames, config.model.from, place);
    format::commit_beside(to);
  } catch (...) {
    format::abandon_beside(to);
    throw;
  }
}

}  // namespace trireme::exchange
