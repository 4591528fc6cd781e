#include "trireme/train/expert_loads.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "trireme/comm/texts.h"

namespace trireme::train {

namespace {

/// JSON has no nan; a step whose loss is none has no auxiliary losses either.
std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.6g}", value) : "null";
}

std::string text_of(const nn::ExpertLoad& one) {
  const double all = std::accumulate(one.tokens.begin(), one.tokens.end(), 0.0);
  std::vector<std::string> parts;
  double entropy = 0, most = 0;
  for (const double tokens : one.tokens) {
    const double part = all > 0 ? tokens / all : 0;
    most = std::max(most, part);
    if (part > 0) entropy -= part * std::log(part);
    parts.push_back(fmt::format("{:.4g}", part));
  }
  return fmt::format(
      R"({{"layer":"{}","load":[{}],"max":{:.4g},"entropy":{:.4g},"dropped":{},"balance":{},"z":{}}})",
      one.layer, fmt::join(parts, ","), most * static_cast<double>(one.tokens.size()), entropy,
      one.dropped, number(one.balance), number(one.z));
}

core::Json json_of(const nn::ExpertLoad& one) {
  return {
      {"layer", one.layer}, {"tokens", one.tokens}, {"others", {one.dropped, one.balance, one.z}}};
}

std::vector<double> numbers_of(const core::Json& json) {
  std::vector<double> all;
  for (const core::Json& one : json)
    all.push_back(one.is_null() ? std::numeric_limits<double>::quiet_NaN() : one.get<double>());
  return all;
}

nn::ExpertLoad load_of(const core::Json& json) {
  const std::vector<double> others = numbers_of(json.at("others"));
  return {.layer = json.at("layer"),
          .tokens = numbers_of(json.at("tokens")),
          .dropped = others.at(0),
          .balance = others.at(1),
          .z = others.at(2)};
}

}  // namespace

std::vector<nn::ExpertLoad> expert_loads(const parallel::Attached& attached) {
  std::vector<nn::ExpertLoad> own;
  for (const torch::nn::Module* module : attached.modules())
    for (const nn::RouterImpl* router : nn::routers_of(*module))
      if (router->load()) own.push_back(*router->load());
  const comm::Communicator& pipe = attached.mesh().group(Axis::Pipe);
  if (pipe.size() == 1) return own;
  core::Json mine = core::Json::array();
  for (const nn::ExpertLoad& one : own) mine.push_back(json_of(one));
  std::vector<nn::ExpertLoad> all;
  for (const std::string& text : comm::all_gather_texts(pipe, mine.dump()))
    for (const core::Json& one : core::parse_json(text, "how experts were used"))
      all.push_back(load_of(one));
  // A rank may have several stages: by the numbers in the names, as in "h.10.moe.router".
  std::ranges::stable_sort(all, [](const nn::ExpertLoad& a, const nn::ExpertLoad& b) {
    return std::pair(a.layer.size(), a.layer) < std::pair(b.layer.size(), b.layer);
  });
  return all;
}

std::string to_json(const std::vector<nn::ExpertLoad>& loads) {
  std::vector<std::string> texts;
  for (const nn::ExpertLoad& one : loads) texts.push_back(text_of(one));
  return fmt::format("[{}]", fmt::join(texts, ","));
}

}  // namespace trireme::train
