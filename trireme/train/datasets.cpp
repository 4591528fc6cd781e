#include "trireme/train/datasets.h"

#include <unistd.h>

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/data/markov.h"
#include "trireme/data/tokens.h"
#include "trireme/train/text_data.h"

namespace trireme::train {

namespace {

constexpr int64_t kValidSamples = 512;  // of a generated language

/// What is wrong with a file is wrong with the configuration that names it.
std::shared_ptr<const data::Dataset> open_tokens(const char* key, const std::string& path,
                                                 const config::Config& config) {
  try {
    return std::make_shared<data::Tokens>(path, config.model.seq, config.model.vocab);
  } catch (const Error& error) {
    const bool is_there = ::access(path.c_str(), F_OK) == 0;
    throw ConfigError(fmt::format(
        "{}: {}; `trireme data make {} --vocab {}` writes a file of tokens to try with", key,
        error.what(), is_there ? "FILE" : path, std::min<int64_t>(config.model.vocab, 65536)));
  }
}

std::shared_ptr<const data::Dataset> open_files(const char* key, const std::string& path,
                                                const config::Config& config) {
  if (config.data.kind == config::DataKind::Tokens) return open_tokens(key, path, config);
  try {
    return config.data.kind == config::DataKind::Text ? open_text(config, path)
                                                      : open_conversations(config, path);
  } catch (const Error& error) {
    throw ConfigError(fmt::format("{}: {}", key, error.what()));
  }
}

}  // namespace

std::shared_ptr<const data::Dataset> make_dataset(const config::Config& config) {
  if (config.data.kind == config::DataKind::Markov)
    return std::make_shared<data::Markov>(
        data::MarkovOptions{.vocab = config.model.vocab,
                            .seq = config.model.seq,
                            .samples = config.data.samples,
                            .seed = static_cast<uint64_t>(config.run.seed)});
  return open_files("data.path", config.data.path, config);
}

std::shared_ptr<const data::Dataset> make_valid_dataset(const config::Config& config) {
  // Texts of the generated language that training never sees.
  if (config.data.kind == config::DataKind::Markov)
    return std::make_shared<data::Markov>(
        data::MarkovOptions{.vocab = config.model.vocab,
                            .seq = config.model.seq,
                            .samples = kValidSamples,
                            .seed = static_cast<uint64_t>(config.run.seed),
                            .first_text = config.data.samples});
  return open_files("data.valid", config.data.valid, config);
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
