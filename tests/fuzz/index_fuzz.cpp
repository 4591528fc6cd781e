// Any text as index.json: refused, or it says the same after being written and read again. The
// checksum at its end is taken off first: it would keep the fuzzer from everything else.
#include "fuzz/fuzz.h"
#include "trireme/core/error.h"
#include "trireme/format/index.h"
#include "trireme/format/json_object.h"

using namespace trireme;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  try {
    format::from_text(text, "index.json");
  } catch (const CheckpointError&) {
  } catch (const ConfigError&) {
  }
  try {
    const format::Index index =
        format::index_of(format::parse_untrusted(text, "index.json", 64), "index.json");
    fuzz::must(format::from_text(format::to_text(index), "index.json") == index);
    format::check_complete(index);
  } catch (const CheckpointError&) {
  } catch (const ConfigError&) {
  }
  return 0;
}
