#include "trireme/exchange/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/exchange/carried.h"
#include "trireme/exchange/export_settings.h"
#include "trireme/exchange/hf_folder.h"
#include "trireme/exchange/part_reader.h"
#include "trireme/exchange/read_ahead.h"
#include "trireme/exchange/start.h"
#include "trireme/format/cast.h"
#include "trireme/format/dtype.h"
#include "trireme/format/file.h"
#include "trireme/format/folder.h"

namespace trireme::exchange {

namespace {

/// One of their tensors, with the one of ours that it is a part of.
struct Outgoing {
  const MappedTensor* tensor;
  const Part* part;
  format::Entry entry;  ///< as it is written
};

/// The tensors of one file.
struct OutgoingFile {
  std::string name;
  std::vector<Outgoing> tensors;
  int64_t bytes = 0;
};

class Export {
 public:
  Export(format::Checkpoint& from, std::string place, const ExportOptions& options)
      : from_(from), reader_(from), place_(std::move(place)), options_(options) {}

  /// Returns the dtype of the first tensor, which config.json names.
  std::string write_weights(const std::vector<MappedTensor>& tensors) {
    const std::vector<OutgoingFile> files = plan(tensors);
    for (const OutgoingFile& file : files) write_file(file);
    if (files.size() > 1) write_index(files);
    return files.front().tensors.front().entry.dtype;
  }

 private:
  std::vector<OutgoingFile> plan(const std::vector<MappedTensor>& tensors) {
    std::vector<OutgoingFile> files(1);
    for (const MappedTensor& tensor : tensors)
      for (const Part& part : tensor.parts) {
        const std::string stored = from_.tensor(tensor.name)->dtype;
        format::Entry entry{.name = part.theirs,
                            .dtype = options_.dtype.empty() ? stored : options_.dtype,
                            .shape = part.shape};
        const int64_t bytes = format::checked_bytes(entry.dtype, entry.shape).value();
        if (!files.back().tensors.empty() && files.back().bytes + bytes > options_.file_bytes)
          files.emplace_back();
        files.back().bytes += bytes;
        all_bytes_ += bytes;
        files.back().tensors.push_back({&tensor, &part, std::move(entry)});
      }
    for (std::size_t i = 0; i < files.size(); ++i) {
      files[i].name = files.size() == 1
                          ? "model.safetensors"
                          : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
      // Python's reader wants elements at multiples of their size.
      std::ranges::stable_sort(files[i].tensors, std::greater{}, [](const Outgoing& one) {
        return format::dtype_bytes(one.entry.dtype);
      });
    }
    return files;
  }

  void write_file(const OutgoingFile& file) {
    std::vector<format::Entry> entries;
    for (const Outgoing& one : file.tensors) entries.push_back(one.entry);
    format::SafetensorsWriter writer(place_ + "/" + file.name, std::move(entries),
                                     {{"format", "pt"}});
    read_ahead(
        [&](const BytesVisit& put) {
          for (const Outgoing& one : file.tensors) read(one, put);
        },
        [&](const char* bytes, int64_t count) {
          writer.append(bytes, count);
          done_bytes_ += count;
          if (options_.progress) options_.progress({done_bytes_, all_bytes_});
        });
    writer.finish();
  }

  void read(const Outgoing& one, const BytesVisit& put) {
    const std::string stored = from_.tensor(one.tensor->name)->dtype;
    const int64_t each = format::dtype_bytes(one.entry.dtype);
    reader_.read(*one.tensor, *one.part, [&](const char* elems, int64_t count) {
      if (one.entry.dtype != stored) {
        cast_.resize(static_cast<std::size_t>(count * each));
        format::cast(stored, elems, one.entry.dtype, cast_.data(), count);
        elems = cast_.data();
      }
      put(elems, count * each);
    });
  }

  void write_index(const std::vector<OutgoingFile>& files) const {
    core::Json map = core::Json::object();
    for (const OutgoingFile& file : files)
      for (const Outgoing& one : file.tensors) map[one.entry.name] = file.name;
    const core::Json index = {{"metadata", {{"total_size", all_bytes_}}},
                              {"weight_map", std::move(map)}};
    format::write_file(place_ + "/" + kIndexOfFiles, index.dump(2) + "\n");
  }

  format::Checkpoint& from_;
  PartReader reader_;
  std::string place_;
  const ExportOptions& options_;
  std::vector<char> cast_;
  int64_t done_bytes_ = 0, all_bytes_ = 0;
};

/// Throws ConfigError unless the checkpoint's weights are these tensors.
void check_weights(const format::Checkpoint& from, const std::vector<MappedTensor>& tensors,
                   const Family& family) {
  std::map<std::string, const MappedTensor*> wanted;
  for (const MappedTensor& tensor : tensors) wanted[tensor.name] = &tensor;
  for (const auto& [name, tensor] : wanted) {
    const auto there = from.tensor(name);
    if (!there)
      throw ConfigError(fmt::format("{} has no tensor '{}', which {} needs", from.folder(), name,
                                    family.architecture));
    if (there->shape != tensor->shape)
      throw ConfigError(fmt::format("{} has tensor '{}' as {}, but by its configuration it is {}",
                                    from.folder(), name, format::format_shape(there->shape),
                                    format::format_shape(tensor->shape)));
  }
  for (const std::string& name : weight_names(from))
    if (!wanted.contains(name))
      throw ConfigError(fmt::format("{} has a tensor '{}', which {} does not have", from.folder(),
                                    name, family.architecture));
}

}  // namespace

void export_checkpoint(const std::string& step, const std::string& to,
                       const ExportOptions& options) {
  format::Checkpoint from(step);
  refuse_adapters(from);
  const config::Config config = config_of(from);
  const Family& family = family_of(config.model);
  family.refuse(config.model);
  config::Model theirs = config.model;
  theirs.vocab = options.vocab.value_or(theirs.vocab);
  theirs.rope_pairs = config::RopePairs::Halves;
  const auto tensors = expand(family.table, config.model, theirs);
  check_weights(from, tensors, family);
  const std::string place = format::begin_beside(to);
  try {
    const std::string dtype = Export(from, place, options).write_weights(tensors);
    write_settings(place, family, theirs, dtype, carried_for(from, config, options.tokenizer));
    format::commit_beside(to);
  } catch (...) {
    format::abandon_beside(to);
    throw;
  }
}

}  // namespace trireme::exchange
