#include "trireme/core/error.h"
#include "trireme/format/images/decode.h"

namespace trireme::format {

Image decode_jpeg(std::string_view, const std::string& path, int64_t) {
  throw ConfigError(
      fmt::format("{}: this build cannot read JPEG files, because it has no libjpeg: install "
                  "libjpeg62-turbo-dev "
                  "(scripts/setup does) and build again",
                  path));
}

}  // namespace trireme::format
