#include "trireme/format/images/image_set.h"

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"

namespace trireme::format {

std::string identity_of_some(const ImageSet& set) {
  constexpr int64_t kMost = 16;
  const int64_t count = std::min(set.size(), kMost);
  std::string hashes;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = count < 2 ? 0 : i * (set.size() - 1) / (count - 1);
    const Image image = set.image(index);
    hashes += fmt::format("{} {:016x} ", set.label(index),
                          core::hash64(image.pixels.data(), image.pixels.size()));
  }
  return fmt::format("{} images, hash {:016x}", set.size(), core::hash64(hashes));
}

}  // namespace trireme::format
