#include "trireme/train/datasets.h"

#include <unistd.h>

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/data/blend.h"
#include "trireme/data/images.h"
#include "trireme/data/markov.h"
#include "trireme/data/tokens.h"
#include "trireme/format/images/listing.h"
#include "trireme/train/text_data.h"

namespace trireme::train {

namespace {

using config::DataKind;
using format::Split;
using DatasetPointer = std::shared_ptr<const data::Dataset>;

constexpr int64_t kValidSamples = 512;  // of a generated language

/// A source as it is opened: which key names it, and which part of the data it is.
struct Wanted {
  DataKind kind;
  std::string key, path;
  Split split = Split::Train;
};

/// Texts of the generated language; in validation those that training never sees.
DatasetPointer make_markov(const config::Config& config, const Wanted& wanted) {
  const bool train = wanted.split == Split::Train;
  return std::make_shared<data::Markov>(
      data::MarkovOptions{.vocab = config.model.vocab,
                          .seq = config.model.seq,
                          .samples = train ? config.data.samples : kValidSamples,
                          .seed = static_cast<uint64_t>(config.run.seed),
                          .first_text = train ? 0 : config.data.samples,
                          .classes = config.data.classes});
}

DatasetPointer open_tokens(const config::Config& config, const Wanted& wanted) {
  try {
    return std::make_shared<data::Tokens>(
        wanted.path, config.model.seq, config.model.vocab,
        config.data.documents ? std::optional(document_end(config)) : std::nullopt);
  } catch (const Error& error) {
    const bool is_there = ::access(wanted.path.c_str(), F_OK) == 0;
    throw Error(
        fmt::format("{}; `trireme data make {} --vocab {}` writes a file of tokens to try "
                    "with",
                    error.what(), is_there ? "FILE" : wanted.path,
                    std::min<int64_t>(config.model.vocab, 65536)));
  }
}

/// The classes of the first folder of training data, by which those of all others, of a blend or
/// for validation, are numbered.
std::vector<std::string> class_names_for(const config::Config& config) {
  for (const config::DataSource& source : config.data.sources())
    if (source.kind == DataKind::Images) return format::list_directory(source.path).folders;
  return {};
}

data::Augmentation augmentation_of(const config::Config& config, const Wanted& wanted) {
  if (config.data.augment == config::Augment::None || wanted.split == Split::Valid)
    return data::Augmentation::None;
  return wanted.kind == DataKind::Idx     ? data::Augmentation::Shift  // a mirrored 2 is no 2
         : wanted.kind == DataKind::Cifar ? data::Augmentation::ShiftFlip
                                          : data::Augmentation::CropFlip;
}

DatasetPointer open_images(const config::Config& config, const Wanted& wanted) {
  if (config.model.channels != 1 && config.model.channels != 3)
    throw ConfigError(fmt::format("model.channels = {}: images have 1 channel (grey) or 3 (colour)",
                                  config.model.channels));
  auto set = wanted.kind == DataKind::Idx ? format::open_idx(wanted.path, wanted.split)
             : wanted.kind == DataKind::Cifar
                 ? format::open_cifar(wanted.path, wanted.split)
                 : format::open_image_folder(wanted.path, class_names_for(config));
  return std::make_shared<data::Images>(
      std::move(set), data::ImageOptions{.size = config.model.image,
                                         .channels = config.model.channels,
                                         .classes = config.model.classes,
                                         .augmentation = augmentation_of(config, wanted),
                                         .seed = static_cast<uint64_t>(config.run.seed)});
}

DatasetPointer open_kind(const config::Config& config, const Wanted& wanted) {
  switch (wanted.kind) {
    case DataKind::Markov: return make_markov(config, wanted);
    case DataKind::Tokens: return open_tokens(config, wanted);
    case DataKind::Idx:
    case DataKind::Cifar:
    case DataKind::Images: return open_images(config, wanted);
    case DataKind::Text: return open_text(config, wanted.path);
    case DataKind::JsonLines: return open_conversations(config, wanted.path);
  }
  return nullptr;  // unreachable
}

/// What is wrong with a file is wrong with the configuration that names it.
DatasetPointer open(const config::Config& config, const Wanted& wanted) {
  if (has_images(wanted.kind) != config.model.has_images())
    throw ConfigError(fmt::format(
        "data.kind = \"{}\" has {}, but model.kind = \"{}\" trains on {}", to_string(wanted.kind),
        has_images(wanted.kind) ? "images" : "tokens", config.model.kind,
        config.model.has_images() ? "images: use \"idx\", \"cifar\" or \"images\""
                                  : "tokens: use a model of images, \"resnet\" or \"vit\""));
  try {
    return open_kind(config, wanted);
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    throw ConfigError(fmt::format("{}: {}", wanted.key, error.what()));
  }
}

}  // namespace

DatasetPointer make_dataset(const config::Config& config) {
  if (config.data.blend.empty())
    return open(config, {config.data.kind, "data.path", config.data.path});
  std::vector<data::Blend::Source> sources;
  for (const config::DataSource& source : config.data.blend)
    sources.push_back({open(config, {source.kind, fmt::format("data.kind[{}].path", sources.size()),
                                     source.path}),
                       source.weight});
  return std::make_shared<data::Blend>(std::move(sources), static_cast<uint64_t>(config.run.seed));
}

/// Of a blend, the validation data is of the kind of its first source that is read from files.
DatasetPointer make_valid_dataset(const config::Config& config) {
  const auto sources = config.data.sources();
  const auto file = std::ranges::find_if(
      sources, [](const auto& source) { return source.kind != DataKind::Markov; });
  return open(config, {file == sources.end() ? DataKind::Markov : file->kind, "data.valid",
                       config.data.valid, Split::Valid});
}

Positions positions_of(const config::Config& config, const Mesh& mesh) {
  const int size = mesh.size(Axis::Context);
  if (size == 1) return {};
  return head_and_tail(config.model.seq, size, mesh.coord(Axis::Context));
}

DatasetPointer part_of(DatasetPointer dataset, const config::Config& config, const Mesh& mesh) {
  if (mesh.size(Axis::Context) == 1) return dataset;
  return std::make_shared<data::PositionsOf>(std::move(dataset), positions_of(config, mesh));
}

core::Json facts_of(const data::Dataset& dataset) {
  return {{"samples", dataset.size()}, {"content", dataset.identity()}};
}

std::optional<std::string> data_difference(const core::Json& saved, const core::Json& now) {
  if (saved == now) return {};
  const auto told = [](const core::Json& facts) {
    const auto content = facts.value("content", std::string());
    return fmt::format("{} samples{}", facts.value("samples", int64_t{0}),
                       content.empty() ? "" : fmt::format(" ({})", content));
  };
  return fmt::format("the data was {}, is {} now (data.allow_change=true accepts it)", told(saved),
                     told(now));
}

}  // namespace trireme::train
