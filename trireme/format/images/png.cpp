#include <png.h>

#include <algorithm>
#include <cstring>

#include "trireme/core/error.h"
#include "trireme/format/images/decode.h"

namespace trireme::format {

namespace {

/// libpng reads from here and reports here. Like libjpeg, it wants an error not to return.
struct PngInput {
  std::string_view left;
  bool is_cut = false;
  char sentence[128] = {};
};

void read_png_bytes(png_structp png, png_bytep to, size_t count) {
  auto& input = *static_cast<PngInput*>(png_get_io_ptr(png));
  if (count > input.left.size()) {
    input.is_cut = true;
    png_error(png, "the file ends");
  }
  std::memcpy(to, input.left.data(), count);
  input.left.remove_prefix(count);
}

void on_png_error(png_structp png, png_const_charp sentence) {
  auto& input = *static_cast<PngInput*>(png_get_error_ptr(png));
  std::strncpy(input.sentence, sentence, sizeof input.sentence - 1);
  png_longjmp(png, 1);
}

void on_png_warning(png_structp, png_const_charp) {}

struct PngDecoder {
  explicit PngDecoder(std::string_view bytes) : input{bytes} {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &input, on_png_error, on_png_warning);
    if (png != nullptr) info = png_create_info_struct(png);
    if (info == nullptr) {
      png_destroy_read_struct(&png, &info, nullptr);
      throw std::bad_alloc();
    }
    png_set_read_fn(png, &input, read_png_bytes);
  }
  ~PngDecoder() { png_destroy_read_struct(&png, &info, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  PngInput input;
  png_structp png = nullptr;
  png_infop info = nullptr;
};

/// These two have no object of their own that would have to be destroyed.
bool begin_png(const PngDecoder& decoder) {
  if (setjmp(png_jmpbuf(decoder.png)) != 0) return false;
  png_read_info(decoder.png, decoder.info);
  png_set_expand(decoder.png);    // palettes and few bits to 8 bits
  png_set_scale_16(decoder.png);  // 16 bits to 8
  png_set_strip_alpha(decoder.png);
  return true;
}

/// An interlaced file has seven passes, each of which fills in more pixels.
bool read_png(const PngDecoder& decoder, uint8_t* pixels, size_t wanted_row_bytes) {
  if (setjmp(png_jmpbuf(decoder.png)) != 0) return false;
  const int passes = png_set_interlace_handling(decoder.png);
  png_read_update_info(decoder.png, decoder.info);
  if (png_get_rowbytes(decoder.png, decoder.info) != wanted_row_bytes)
    png_error(decoder.png, "its rows have another length than its header says");
  const png_uint_32 height = png_get_image_height(decoder.png, decoder.info);
  for (int pass = 0; pass < passes; ++pass)
    for (png_uint_32 row = 0; row < height; ++row)
      png_read_row(decoder.png, pixels + row * wanted_row_bytes, nullptr);
  png_read_end(decoder.png, nullptr);
  return true;
}

}  // namespace

Image decode_png(std::string_view bytes, const std::string& path, int64_t most_pixels) {
  const PngDecoder decoder(bytes);
  const auto check = [&](bool ok) {
    if (ok) return;
    if (decoder.input.is_cut)
      throw Error(fmt::format("{} was cut short: it ends after {} bytes, before its image does",
                              path, bytes.size()));
    throw Error(fmt::format("{} is a damaged PNG file: {}", path, decoder.input.sentence));
  };
  check(begin_png(decoder));
  const bool is_colour =
      (png_get_color_type(decoder.png, decoder.info) & PNG_COLOR_MASK_COLOR) != 0;
  Image image{{png_get_image_height(decoder.png, decoder.info),
               png_get_image_width(decoder.png, decoder.info), is_colour ? 3 : 1},
              {}};
  check_pixels(image.shape.height, image.shape.width, most_pixels, path);
  image.pixels.resize(static_cast<size_t>(image.shape.numel()));
  const int64_t row_bytes = image.shape.width * image.shape.channels;
  check(read_png(decoder, image.pixels.data(), static_cast<size_t>(row_bytes)));
  return image;
}

}  // namespace trireme::format
