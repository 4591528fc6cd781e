#include "trireme/format/images/decode.h"

#include "trireme/core/error.h"

namespace trireme::format {

bool is_jpeg(std::string_view bytes) {
  return bytes.starts_with("\xFF\xD8\xFF");
}

bool is_png(std::string_view bytes) {
  return bytes.starts_with("\x89PNG\r\n\x1A\n");
}

void check_pixels(int64_t height, int64_t width, int64_t most_pixels, const std::string& path) {
  if (height <= 0 || width <= 0)
    throw Error(fmt::format("{} says that it has {} x {} pixels", path, height, width));
  if (height > most_pixels / width)
    throw Error(fmt::format("{} says that it has {} x {} pixels, more than {}", path, height, width,
                            most_pixels));
}

Image decode_image(std::string_view bytes, const std::string& path, int64_t most_pixels) {
  if (is_jpeg(bytes)) return decode_jpeg(bytes, path, most_pixels);
  if (is_png(bytes)) return decode_png(bytes, path, most_pixels);
  throw Error(fmt::format("{} is neither a JPEG nor a PNG image", path));
}

}  // namespace trireme::format
