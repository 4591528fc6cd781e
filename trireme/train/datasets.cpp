#include "trireme/train/datasets.h"

#include "trireme/data/markov.h"
#include "trireme/data/tokens.h"

namespace trireme::train {

namespace {

constexpr int64_t kValidSamples = 512;  // of a generated language

}  // namespace

std::shared_ptr<const data::Dataset> make_dataset(const config::Config& config) {
  if (config.data.kind == config::DataKind::Markov)
    return std::make_shared<data::Markov>(
        data::MarkovOptions{.vocab = config.model.vocab,
                            .seq = config.model.seq,
                            .samples = config.data.samples,
                            .seed = static_cast<uint64_t>(config.run.seed)});
  return std::make_shared<data::Tokens>(config.data.path, config.model.seq, config.model.vocab);
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
  return std::make_shared<data::Tokens>(config.data.valid, config.model.seq, config.model.vocab);
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
