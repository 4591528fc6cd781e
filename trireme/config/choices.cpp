#include "trireme/config/choices.h"

#include <fmt/ranges.h>

#include <limits>

#include "trireme/core/env.h"

namespace trireme::config {

std::string to_string(const Balance& balance) {
  switch (balance.by) {
    case Balance::By::Time: return "time";
    case Balance::By::Parameters: return "params";
    case Balance::By::Layers: break;
  }
  return fmt::format("{}", fmt::join(balance.layers, ","));
}

std::optional<Balance> parse_balance(std::string_view text) {
  if (text == "time") return Balance{Balance::By::Time};
  if (text == "params") return Balance{Balance::By::Parameters};
  Balance balance{Balance::By::Layers};
  for (;;) {
    const auto comma = text.find(',');
    const auto layers = core::parse_int(text.substr(0, comma));
    if (!layers || *layers < 1 || *layers > std::numeric_limits<int>::max()) return {};
    balance.layers.push_back(static_cast<int>(*layers));
    if (comma == text.npos) return balance;
    text.remove_prefix(comma + 1);
  }
}

std::string to_string(const Resume& resume) {
  switch (resume.from) {
    case Resume::From::Newest: return "auto";
    case Resume::From::Nothing: return "never";
    case Resume::From::Folder: break;
  }
  return resume.folder;
}

Resume parse_resume(std::string_view text) {
  if (text == "auto") return {Resume::From::Newest};
  if (text == "never") return {Resume::From::Nothing};
  return {Resume::From::Folder, std::string(text)};
}

}  // namespace trireme::config
