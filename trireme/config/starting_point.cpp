#include "trireme/config/starting_point.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/config/effects.h"
#include "trireme/config/keys.h"
#include "trireme/config/load.h"
#include "trireme/core/error.h"

namespace trireme::config {

namespace {

/// What one model's starting point sets; all other keys keep their defaults.
struct Start {
  std::string_view model;
  std::string_view about;  ///< its first lines
  std::vector<std::string> settings;
};

constexpr std::string_view kLanguage =
    "It trains as it is, in a minute or two: on a generated language, whose lowest possible loss\n"
    "is known. For a text of your own set data.kind, data.path, data.valid (or eval.every = 0) "
    "and\n"
    "model.vocab.";
constexpr std::string_view kImages =
    "It needs a data set: set data.kind, data.path and data.valid (or eval.every = 0), and the\n"
    "model's classes, image and channels to what is in it.";

std::vector<std::string> with(std::vector<std::string> some, const std::vector<std::string>& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

std::vector<Start> starts() {
  const std::vector<std::string> run = {"batch.global=32", "batch.micro=16", "mesh.replica=1",
                                        "checkpoint.every=100", "log.every=20"};
  const std::vector<std::string> language =
      with({"run.steps=400", "model.layers=4", "model.hidden=128", "model.heads=4", "model.seq=64",
            "model.vocab=256", "data.kind=markov", "data.samples=16384", "optim.lr=3e-3",
            "optim.warmup=20", "eval.every=100", "eval.batches=4"},
           run);
  const std::string cifar = "data/cifar-10-batches-bin";
  const std::vector<std::string> images =
      with({"run.steps=4000", "model.classes=10", "model.image=32", "model.channels=3",
            "data.kind=cifar", "data.path=" + cifar, "data.valid=" + cifar, "data.augment=standard",
            "eval.every=400"},
           run);
  return {{"gpt", kLanguage, language},
          {"llama", kLanguage,
           with(language, {"model.kv_heads=2", "model.ffn=352", "model.tie=false"})},
          {"moe-gpt", kLanguage,
           with(language, {"model.experts=8", "model.top_k=2", "model.expert_ffn=256"})},
          {"moe-llama", kLanguage,
           with(language, {"model.kv_heads=2", "model.tie=false", "model.experts=8",
                           "model.top_k=2", "model.expert_ffn=176", "model.router=normalised"})},
          {"mlp", kLanguage,
           with({"run.steps=400", "model.layers=2", "model.hidden=128", "model.seq=4",
                 "model.vocab=64", "data.kind=markov", "data.samples=65536", "optim.lr=2e-3",
                 "optim.warmup=20", "eval.every=100", "eval.batches=4"},
                run)},
          {"resnet", kImages,
           with(images, {"model.depth=18", "optim.kind=sgd", "optim.lr=0.1", "optim.momentum=0.9",
                         "optim.weight_decay=5e-4"})},
          {"vit", kImages,
           with(images, {"model.patch=4", "model.layers=6", "model.hidden=192", "model.heads=3",
                         "optim.lr=1e-3", "optim.warmup=100", "optim.weight_decay=0.05"})}};
}

const Limits& kinds() {
  return find_key("model.kind")->limits;
}

bool has(const std::vector<std::string_view>& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

/// Sections of which a beginner needs every key; the others are named at the end.
bool comes_first(std::string_view section) {
  constexpr std::string_view kFirst[] = {"run",        "model", "data",      "batch",
                                         "optim",      "mesh",  "precision", "memory",
                                         "checkpoint", "eval",  "log"};
  return std::ranges::find(kFirst, section) != std::end(kFirst);
}

/// Whether the key says something in this configuration. A meaning that begins with "vit: " is of
/// that model alone, and "images: " of models of images.
bool belongs(const Key& key, const Config& config) {
  if (key.built == Built::Later || !comes_first(key.section())) return false;
  if (key.section() == "data") return true;  // to be set with data.kind
  if (why_no_effect(key.name, config)) return false;
  const auto colon = key.meaning.find(": ");
  if (key.section() != "model" || colon == key.meaning.npos) return true;
  const std::string_view of = key.meaning.substr(0, colon);
  const bool sees = config.model.kind == "resnet" || config.model.kind == "vit";
  if (of == "images") return sees;
  if (of == "experts") return config.model.has_experts();
  if (of == "llama" || of == "llama3") return config.model.is_llama();
  const bool is_model = has(kinds().words, of) || has(kinds().later, of);
  return !is_model || of == config.model.kind;
}

std::string line_of(const Key& key, const Value& value, bool is_set) {
  constexpr std::size_t kLongest = 60;
  const std::string wanted = wanted_value(key);
  const std::string setting =
      fmt::format("{}{} = {}", is_set ? "" : "# ", key.last_name(), to_text(value));
  const bool tells = !key.limits.words.empty() && key.meaning.size() + wanted.size() < kLongest;
  return fmt::format("{:<32}# {}{}{}\n", setting, key.meaning, tells ? "; " : "",
                     tells ? wanted : "");
}

}  // namespace

std::vector<std::string_view> starting_points() {
  std::vector<std::string_view> names;
  for (const Start& start : starts())
    if (has(kinds().words, start.model)) names.push_back(start.model);
  return names;
}

std::string starting_point(std::string_view model) {
  const auto all = starts();
  const auto known = starting_points();
  if (std::ranges::find(known, model) == known.end())
    throw ConfigError(fmt::format("there is no starting point for '{}'; there are {}", model,
                                  fmt::join(known, ", ")));
  const Start& start = *std::ranges::find(all, model, &Start::model);
  std::vector<std::string> settings = {fmt::format("model.kind={}", model),
                                       fmt::format("run.dir=runs/{}", model)};
  settings = with(settings, start.settings);
  const Config config = parse("", "a starting point", settings);
  std::string text = fmt::format(
      "# A starting point for {}. {}\n#\n"
      "# Lines behind '#' are keys at their defaults: remove the '#' and change the value.\n",
      model, start.about);
  for (std::size_t at = text.find('\n'); at + 1 < text.size(); at = text.find('\n', at + 1))
    if (text[at + 1] != '#') text.insert(at + 1, "# ");
  std::string_view section;
  for (const Key& key : keys()) {
    if (!belongs(key, config)) continue;
    if (key.section() != section) text += fmt::format("\n[{}]\n", key.section());
    section = key.section();
    const bool is_set = std::ranges::any_of(
        settings, [&](const std::string& one) { return one.substr(0, one.find('=')) == key.name; });
    text += line_of(key, get(key, is_set ? config : Config{}), is_set);
  }
  return text + "\n# 'trireme train --help' lists the keys of the other sections too.\n";
}

}  // namespace trireme::config
