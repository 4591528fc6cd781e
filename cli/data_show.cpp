#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "cli/data_views.h"
#include "trireme/core/error.h"
#include "trireme/core/terminal.h"
#include "trireme/format/images/resample.h"
#include "trireme/format/tokenizer.h"
#include "trireme/format/tokens.h"

namespace trireme::cli {

namespace {

/// An image that fits on a screen: planes of 0 to 255.
struct Picture {
  int64_t height, width, channels;
  std::vector<float> planes;
  int at(int64_t channel, int64_t y, int64_t x) const {
    if (y >= height) return 0;
    const int64_t plane = channels == 3 ? channel : 0;
    const float value = planes[static_cast<size_t>((plane * height + y) * width + x)];
    return std::clamp(static_cast<int>(std::lround(value)), 0, 255);
  }
};

Picture fitted(const format::Image& image, int64_t most_columns) {
  const auto& [height, width, channels] = image.shape;
  const int64_t columns = std::min(width, most_columns);
  const int64_t rows = std::max<int64_t>(1, (height * columns + width / 2) / width);
  const format::Crop all{0, 0, static_cast<double>(width), static_cast<double>(height)};
  return {rows, columns, channels, format::resample(image, all, rows, columns)};
}

int show_image(const DataPlace& place, int64_t number) {
  const auto set = open_images(place, format::Split::Train);
  check_number(place.path, number, set->size());
  const format::Image image = set->image(number);
  const auto label = static_cast<size_t>(set->label(number));
  const auto& names = set->class_names();
  fmt::print("{}: label {}{}, {}\n{}", set->name_of(number), label,
             label < names.size() ? fmt::format(" ({})", names[label]) : "", to_string(image.shape),
             draw(image, core::shows_colour(STDOUT_FILENO)));
  return 0;
}

int show_tokens(const DataPlace& place, int64_t number) {
  const format::TokenFile file(place.path);
  const int64_t samples = std::max<int64_t>(0, (file.size() - 1) / place.seq);
  if (samples == 0)
    throw ConfigError(fmt::format("{}: {} tokens are not enough for one sample of --seq {}",
                                  place.path, file.size(), place.seq));
  check_number(place.path, number, samples);
  std::vector<int64_t> tokens(static_cast<size_t>(place.seq));
  file.read(number * place.seq, place.seq, tokens.data());
  fmt::print("{}: tokens {} to {}\n", file.path(), number * place.seq,
             (number + 1) * place.seq - 1);
  if (place.tokenizer.empty()) {
    std::string line;
    for (const int64_t token : tokens) line += fmt::format("{} ", token);
    line.back() = '\n';
    fmt::print("{}", line);
    return 0;
  }
  const auto tokenizer = format::load_tokenizer(place.tokenizer);
  const std::vector<int32_t> ids(tokens.begin(), tokens.end());
  fmt::print("{}\n", tokenizer->decode(ids));
  return 0;
}

}  // namespace

void check_number(const std::string& path, int64_t number, int64_t size) {
  if (number < 0 || number >= size)
    throw ConfigError(
        fmt::format("sample {} of {}: it has {}, from 0 to {}", number, path, size, size - 1));
}

std::string draw(const format::Image& image, bool has_colour) {
  constexpr int64_t kColumns = 76;
  std::string text;
  if (has_colour) {
    const Picture picture = fitted(image, kColumns);
    for (int64_t y = 0; y < picture.height; y += 2) {
      for (int64_t x = 0; x < picture.width; ++x)
        text += fmt::format("\033[38;2;{};{};{};48;2;{};{};{}m▀", picture.at(0, y, x),
                            picture.at(1, y, x), picture.at(2, y, x), picture.at(0, y + 1, x),
                            picture.at(1, y + 1, x), picture.at(2, y + 1, x));
      text += "\033[0m\n";
    }
    return text;
  }
  constexpr std::string_view kShades = " .:-=+*#%@";  // from dark to light
  const Picture picture = fitted(format::with_channels(image, 1), kColumns / 2);
  for (int64_t y = 0; y < picture.height; ++y) {
    for (int64_t x = 0; x < picture.width; ++x)
      text.append(2, kShades[static_cast<size_t>(picture.at(0, y, x)) * kShades.size() / 256]);
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

int data_show(const DataPlace& place, int64_t number) {
  if (is_text(place)) return text_show(place, number);
  return has_images(place.kind) ? show_image(place, number) : show_tokens(place, number);
}

}  // namespace trireme::cli
