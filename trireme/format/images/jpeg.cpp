// jpeglib.h needs size_t and FILE to be declared before it.
// clang-format off
#include <cstddef>
#include <cstdio>

#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <csetjmp>

#include "trireme/core/error.h"
#include "trireme/format/images/decode.h"

namespace trireme::format {

namespace {

/// libjpeg reports through these functions, and wants an error not to return: it jumps back to
/// where `back` was set. No C++ frame lies between the two.
struct JpegErrors {
  jpeg_error_mgr functions{};
  std::jmp_buf back;
  char sentence[JMSG_LENGTH_MAX] = {};
};

void leave_jpeg(j_common_ptr info) {
  auto& errors = *reinterpret_cast<JpegErrors*>(info->err);
  info->err->format_message(info, errors.sentence);
  std::longjmp(errors.back, 1);
}

/// At the end of the file libjpeg warns, and fills the rest of the image with grey. Other warnings
/// are about bytes that many real files have.
void on_jpeg_message(j_common_ptr info, int level) {
  if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) leave_jpeg(info);
}

/// Ends the decoder however it is left.
struct JpegDecoder {
  JpegDecoder() {
    state.err = jpeg_std_error(&errors.functions);
    errors.functions.error_exit = leave_jpeg;
    errors.functions.emit_message = on_jpeg_message;
  }
  ~JpegDecoder() { jpeg_destroy_decompress(&state); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  jpeg_decompress_struct state{};
  JpegErrors errors;
};

/// Both read with setjmp, so they have no object of their own that would have to be destroyed.
bool begin_jpeg(JpegDecoder& decoder, std::string_view bytes) {
  if (setjmp(decoder.errors.back) != 0) return false;
  jpeg_create_decompress(&decoder.state);
  jpeg_mem_src(&decoder.state, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&decoder.state, TRUE);
  const int components = decoder.state.num_components;
  decoder.state.out_color_space = components == 1   ? JCS_GRAYSCALE
                                  : components == 4 ? JCS_CMYK
                                                    : JCS_RGB;
  return true;
}

bool read_jpeg(JpegDecoder& decoder, uint8_t* pixels) {
  if (setjmp(decoder.errors.back) != 0) return false;
  jpeg_decompress_struct& state = decoder.state;
  jpeg_start_decompress(&state);
  const size_t row_bytes = size_t{state.output_width} * state.output_components;
  while (state.output_scanline < state.output_height) {
    JSAMPROW row = pixels + state.output_scanline * row_bytes;
    jpeg_read_scanlines(&state, &row, 1);
  }
  jpeg_finish_decompress(&state);
  return true;
}

/// Printers' colours (cyan, magenta, yellow, black) to red, green and blue. Adobe's programs write
/// 255 for no ink.
Image colours_of_inks(const Image& inks, bool are_inverted) {
  Image colours{{inks.shape.height, inks.shape.width, 3}, {}};
  colours.pixels.reserve(static_cast<size_t>(colours.shape.numel()));
  for (size_t i = 0; i + 3 < inks.pixels.size(); i += 4) {
    const auto light = [&](size_t k) {
      return are_inverted ? inks.pixels[i + k] : 255 - inks.pixels[i + k];
    };
    for (size_t k = 0; k < 3; ++k)
      colours.pixels.push_back(static_cast<uint8_t>((light(k) * light(3) + 127) / 255));
  }
  return colours;
}

}  // namespace

Image decode_jpeg(std::string_view bytes, const std::string& path, int64_t most_pixels) {
  JpegDecoder decoder;
  const auto check = [&](bool ok) {
    if (ok) return;
    if (decoder.errors.functions.msg_code == JWRN_JPEG_EOF ||
        decoder.errors.functions.msg_code == JERR_INPUT_EMPTY ||
        decoder.errors.functions.msg_code == JERR_INPUT_EOF)
      throw Error(fmt::format("{} was cut short: it ends after {} bytes, before its image does",
                              path, bytes.size()));
    throw Error(fmt::format("{} is a damaged JPEG file: {}", path, decoder.errors.sentence));
  };
  check(begin_jpeg(decoder, bytes));
  const jpeg_decompress_struct& state = decoder.state;
  check_pixels(state.image_height, state.image_width, most_pixels, path);
  const int channels = state.out_color_space == JCS_GRAYSCALE ? 1
                       : state.out_color_space == JCS_CMYK    ? 4
                                                              : 3;
  Image image{{state.image_height, state.image_width, channels}, {}};
  image.pixels.resize(static_cast<size_t>(image.shape.numel()));
  check(read_jpeg(decoder, image.pixels.data()));
  return channels == 4 ? colours_of_inks(image, state.saw_Adobe_marker) : image;
}

}  // namespace trireme::format
