#include "trireme/core/error.h"
#include "trireme/format/images/gzip.h"

namespace trireme::format {

struct GzipReader::Handle {};

GzipReader::GzipReader(const std::string& path) : path_(path) {
  throw ConfigError(fmt::format(
      "{}: this build cannot read .gz files, because it has no zlib: install zlib1g-dev "
      "(scripts/setup does) and build again, or unpack the file",
      path));
}

GzipReader::~GzipReader() = default;

void GzipReader::read(int64_t, std::string&) {}

}  // namespace trireme::format
