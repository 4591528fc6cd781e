#include "trireme/core/json.h"

#include "trireme/core/error.h"

namespace trireme::core {

Json parse_json(std::string_view text, std::string_view what) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw Error(fmt::format("{} is not JSON: error at byte {}", what, error.byte));
  }
}

}  // namespace trireme::core
