#include "trireme/core/error.h"
#include "trireme/format/images/decode.h"

namespace trireme::format {

Image decode_png(std::string_view, const std::string& path, int64_t) {
  throw ConfigError(
      fmt::format("{}: this build cannot read PNG files, because it has no libpng: install "
                  "libpng-dev (scripts/setup does) and build again",
                  path));
}

}  // namespace trireme::format
