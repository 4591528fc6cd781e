#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::test {

inline std::string big_endian(uint32_t number) {
  return {static_cast<char>(number >> 24), static_cast<char>(number >> 16),
          static_cast<char>(number >> 8), static_cast<char>(number)};
}

/// An IDX file of bytes.
inline std::string idx_file(const std::vector<uint32_t>& sizes, const std::string& bytes) {
  std::string file("\0\0\x08", 3);
  file += static_cast<char>(sizes.size());
  for (const uint32_t size : sizes) file += big_endian(size);
  return file + bytes;
}

/// A byte that differs by image and place, so that one that is out of place shows.
inline uint8_t some_pixel(int64_t image, int64_t place) {
  return static_cast<uint8_t>(image * 37 + place * 11 + place / 256);
}

inline std::string some_pixels(int64_t images, int64_t each) {
  std::string bytes;
  for (int64_t i = 0; i < images; ++i)
    for (int64_t k = 0; k < each; ++k) bytes += static_cast<char>(some_pixel(i, k));
  return bytes;
}

/// A file of CIFAR-10's binary version, or with a coarse label before it, of CIFAR-100's.
inline std::string cifar_file(const std::vector<uint8_t>& labels, bool has_coarse_labels = false,
                              int64_t first_image = 0) {
  std::string bytes;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (has_coarse_labels) bytes += '\x13';
    bytes += static_cast<char>(labels[i]);
    for (int64_t k = 0; k < 3072; ++k)
      bytes += static_cast<char>(some_pixel(first_image + static_cast<int64_t>(i), k));
  }
  return bytes;
}

}  // namespace trireme::test
