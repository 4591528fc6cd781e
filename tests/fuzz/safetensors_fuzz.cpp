// Any bytes as a safetensors file: refused with a CheckpointError, or every tensor can be read.
#include "fuzz/fuzz.h"
#include "trireme/core/error.h"
#include "trireme/format/dtype.h"
#include "trireme/format/safetensors.h"

using namespace trireme;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const fuzz::MemoryFile file;
  file.put(data, bytes);
  try {
    format::SafetensorsReader reader(file.path());
    int64_t all = 0;
    for (const format::Entry& entry : reader.entries()) {
      fuzz::must(format::checked_bytes(entry.dtype, entry.shape) == entry.bytes);
      fuzz::must(reader.find(entry.name) != nullptr);
      std::string content(static_cast<size_t>(entry.bytes), '\0');
      reader.read(entry.name, 0, entry.bytes, content.data());
      all += entry.bytes;
    }
    fuzz::must(all <= static_cast<int64_t>(bytes));
  } catch (const CheckpointError&) {
  }
  return 0;
}
