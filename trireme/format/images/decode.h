#pragma once

#include <string>
#include <string_view>

#include "trireme/format/images/image.h"

namespace trireme::format {

/// A small file may claim to be a huge image.
constexpr int64_t kMostPixels = int64_t{1} << 27;

/// Whether the bytes begin as JPEG or PNG files do.
bool is_jpeg(std::string_view bytes);
bool is_png(std::string_view bytes);

/// A JPEG or PNG file as 8 bits a channel, grey or colour as it is; transparency is dropped, and
/// EXIF's rotation is not applied. Throws Error with one sentence if it is neither, damaged, cut
/// short or has more pixels than `most_pixels`. `path` is named in messages.
Image decode_image(std::string_view bytes, const std::string& path,
                   int64_t most_pixels = kMostPixels);

/// The same for one of the two. A build without the library has one that throws.
Image decode_jpeg(std::string_view bytes, const std::string& path, int64_t most_pixels);
Image decode_png(std::string_view bytes, const std::string& path, int64_t most_pixels);

/// Throws if an image of this size is empty or too large.
void check_pixels(int64_t height, int64_t width, int64_t most_pixels, const std::string& path);

}  // namespace trireme::format
