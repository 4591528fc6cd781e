// Where there is no PCRE2, only the published patterns, which are written by hand, can be used.
#include "trireme/core/error.h"
#include "trireme/format/bpe/splitter.h"

namespace trireme::format {

std::unique_ptr<const Splitter> make_regex_splitter(const std::string& pattern) {
  throw Error(fmt::format(
      "the split pattern '{}' needs PCRE2, which this trireme was built without; install "
      "libpcre2-dev (scripts/setup does) and build again",
      pattern));
}

}  // namespace trireme::format
