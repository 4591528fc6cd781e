#include "trireme/pipeline/action.h"

#include <fmt/format.h>

#include <array>

namespace trireme::pipeline {

namespace {

constexpr std::array<std::string_view, kNumActs> kNames = {  // indexed by Act
    "F",      "B",      "I",       "W",       "SEND_F",      "RECV_F",
    "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD", "UPDATE"};

}  // namespace

std::string_view to_string(Act act) {
  return kNames[static_cast<std::size_t>(act)];
}

std::string to_text(const Action& action) {
  if (action.micro == kNoMicro) return fmt::format("{}{}", action.stage, to_string(action.act));
  return fmt::format("{}{}{}", action.stage, to_string(action.act), action.micro);
}

}  // namespace trireme::pipeline
