#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trireme/config/choices.h"
#include "trireme/format/images/image_set.h"

namespace trireme::cli {

/// A data set that `trireme data info` and `show` look at.
struct DataPlace {
  std::string path;
  config::DataKind kind = config::DataKind::Tokens;
  std::string tokenizer{};  ///< of texts, and to read tokens as text; empty: none
  int64_t seq = 64;         ///< tokens in a sample
};

/// The kind of data that lies there, by names and first bytes: a folder with data_batch_1.bin is
/// CIFAR, and so on. What looks like nothing else is a file of tokens.
config::DataKind guess_kind(const std::string& path);
inline bool is_text(const DataPlace& place) {
  return place.kind == config::DataKind::Text || place.kind == config::DataKind::JsonLines;
}

/// Throws unless the place is one of images.
std::unique_ptr<const format::ImageSet> open_images(const DataPlace& place, format::Split split);

/// Throws ConfigError unless 0 <= number < size.
void check_number(const std::string& path, int64_t number, int64_t size);

/// The image in characters, at most 76 of them wide: two pixels each, one above the other, with
/// colours; or a letter that is as bright as the pixel, twice.
std::string draw(const format::Image& image, bool has_colour);

/// Of texts: documents, or the lines of a .jsonl file.
int text_info(const DataPlace& place);
int text_show(const DataPlace& place, int64_t number);

int data_info(const DataPlace& place);
/// Draws or prints sample `number`.
int data_show(const DataPlace& place, int64_t number);

}  // namespace trireme::cli
