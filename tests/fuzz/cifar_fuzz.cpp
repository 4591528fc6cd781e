// Any bytes as a file of CIFAR: refused with an Error, or all images and labels can be read.
#include "fuzz/fuzz.h"
#include "trireme/core/error.h"
#include "trireme/format/images/image_set.h"

using namespace trireme;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const fuzz::MemoryFile file;
  file.put(data, bytes);
  try {
    const auto set = format::open_cifar(file.path(), format::Split::Train);
    fuzz::must(set->size() > 0 && set->size() <= static_cast<int64_t>(bytes) / 3073);
    for (int64_t i = 0; i < set->size(); ++i) {
      fuzz::must(set->label(i) >= 0 && set->label(i) < set->classes());
      fuzz::must(static_cast<int64_t>(set->image(i).pixels.size()) == set->shape()->numel());
    }
  } catch (const Error&) {
  }
  return 0;
}
