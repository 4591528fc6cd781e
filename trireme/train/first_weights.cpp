#include "trireme/train/first_weights.h"

#include <fmt/format.h>

#include <functional>
#include <set>

#include "trireme/checkpoint/resume.h"
#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/exchange/fingerprint.h"
#include "trireme/exchange/start.h"

namespace trireme::train {

namespace {

/// The names of the weights of all ranks: a stage of a pipeline knows only its own.
std::set<std::string> names_of(const comm::Communicator& world, const checkpoint::State& weights) {
  core::Json mine = core::Json::array();
  for (const checkpoint::Item& one : weights.items) mine.push_back(one.piece.name);
  std::set<std::string> names;
  for (const std::string& text : comm::all_gather_texts(world, mine.dump()))
    for (const core::Json& name : core::parse_json(text, "the names of a rank's weights"))
      names.insert(name);
  return names;
}

/// Does something on every rank. If it fails on one, all throw its error.
void agree(const comm::Communicator& world, const std::function<void()>& body) {
  std::string problem;
  try {
    body();
  } catch (const Error& error) {
    problem = error.what();
  }
  for (const std::string& text : comm::all_gather_texts(world, problem))
    if (!text.empty()) throw ConfigError(text);
}

}  // namespace

void check_names(const config::Config& config, const std::set<std::string>& needed,
                 const std::vector<std::string>& there) {
  const std::set<std::string> found(there.begin(), there.end());
  for (const std::string& name : needed)
    if (!found.contains(name))
      throw ConfigError(
          fmt::format("model.from = \"{}\" has no tensor '{}', which this model needs",
                      config.model.from, name));
  for (const std::string& name : found)
    if (!needed.contains(name))
      throw ConfigError(
          fmt::format("model.from = \"{}\" has a tensor '{}', which this model does "
                      "not have",
                      config.model.from, name));
}

std::string load_first_weights(const config::Config& config, const comm::Communicator& world,
                               Trainer& trainer) {
  const checkpoint::State weights = trainer.weights();
  exchange::StartWeights start;
  agree(world, [&] { start = exchange::open_weights(config); });
  check_names(config, names_of(world, weights), start.names);
  agree(world, [&] { checkpoint::load(*start.source, weights); });
  trainer.begin_from_weights();
  return fmt::format("starts from {}: {}", config.model.from, start.what);
}

std::string fingerprint_of_first_weights(const config::Config& config,
                                         const comm::Communicator& world) {
  std::string found;
  agree(world, [&] {
    if (world.rank() == 0) found = exchange::fingerprint(exchange::open_weights(config));
  });
  return comm::broadcast_text(world, found, 0);
}

}  // namespace trireme::train
