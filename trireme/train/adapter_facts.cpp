#include "trireme/train/adapter_facts.h"

namespace trireme::train {

core::Json facts_of_adapters(const config::Config& config) {
  const config::Lora& keys = config.lora;
  const double scale = keys.alpha > 0 ? keys.alpha / static_cast<double>(keys.rank) : 1;
  core::Json base = core::Json::object();
  if (config.model.from.empty())
    base["seed"] = config.run.seed;
  else
    base["from"] = config.model.from;
  return {{"rank", keys.rank}, {"scale", scale}, {"targets", keys.targets}, {"base", base}};
}

}  // namespace trireme::train
