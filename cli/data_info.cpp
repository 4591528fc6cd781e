#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "cli/data_views.h"
#include "trireme/core/error.h"
#include "trireme/format/tokens.h"

namespace trireme::cli {

namespace {

using format::ImageSet;
using format::ImageShape;

/// What a look at some images shows.
struct PixelFacts {
  ImageShape smallest{INT64_MAX, INT64_MAX, INT64_MAX}, largest{};
  double mean = 0, deviation = 0;  ///< of 0 to 1
  int64_t images = 0;
};

/// Of at most 256 images, evenly spaced.
PixelFacts pixel_facts(const ImageSet& set) {
  constexpr int64_t kMost = 256;
  PixelFacts facts{.images = std::min(set.size(), kMost)};
  double sum = 0, squares = 0, count = 0;
  for (int64_t i = 0; i < facts.images; ++i) {
    const format::Image image = set.image(i * set.size() / facts.images);
    const auto& [height, width, channels] = image.shape;
    facts.smallest = {std::min(facts.smallest.height, height),
                      std::min(facts.smallest.width, width),
                      std::min(facts.smallest.channels, channels)};
    facts.largest = {std::max(facts.largest.height, height), std::max(facts.largest.width, width),
                     std::max(facts.largest.channels, channels)};
    for (const uint8_t pixel : image.pixels) {
      const double light = pixel / 255.0;
      sum += light;
      squares += light * light;
    }
    count += static_cast<double>(image.pixels.size());
  }
  facts.mean = sum / count;
  facts.deviation = std::sqrt(std::max(0.0, squares / count - facts.mean * facts.mean));
  return facts;
}

std::vector<int64_t> images_of_classes(const ImageSet& set) {
  std::vector<int64_t> counts(static_cast<size_t>(set.classes()));
  for (int64_t i = 0; i < set.size(); ++i) ++counts[static_cast<size_t>(set.label(i))];
  return counts;
}

/// A line for each class, with a bar; of many only the range.
void print_classes(const ImageSet& set) {
  const auto counts = images_of_classes(set);
  const auto& names = set.class_names();
  const auto [least, most] = std::ranges::minmax(counts);
  constexpr size_t kMostLines = 16;
  constexpr int64_t kBar = 40;
  fmt::print("{} classes of {} images each\n", counts.size(),
             least == most ? std::to_string(least) : fmt::format("{} to {}", least, most));
  if (counts.size() > kMostLines) return;
  for (size_t i = 0; i < counts.size(); ++i) {
    const std::string name = i < names.size() ? ' ' + names[i].substr(0, 20) : "";
    fmt::print("  {:>2}{:<21} {:>7} {}\n", i, name, counts[i],
               std::string(static_cast<size_t>(kBar * counts[i] / most), '#'));
  }
}

void print_images(const DataPlace& place, const ImageSet& set) {
  const PixelFacts facts = pixel_facts(set);
  fmt::print("{}: {}, {}", place.path, set.kind(), set.identity());
  if (set.shape())
    fmt::print(", {}\n", to_string(*set.shape()));
  else
    fmt::print("\n{} x {} to {} x {} pixels, {}\n", facts.smallest.height, facts.smallest.width,
               facts.largest.height, facts.largest.width,
               facts.smallest.channels != facts.largest.channels ? "grey and colour"
               : facts.largest.channels == 1                     ? "grey"
                                                                 : "colour");
  fmt::print("pixels from 0 to 1: mean {:.4f}, deviation {:.4f} ({} images)\n", facts.mean,
             facts.deviation, facts.images);
  print_classes(set);
}

/// What the same folder has for validation; nothing where it has none.
std::optional<int64_t> valid_images(const DataPlace& place) {
  if (place.kind == config::DataKind::Images) return {};
  try {
    const auto train = open_images(place, format::Split::Train);
    const auto valid = open_images(place, format::Split::Valid);
    if (valid->name_of(0) == train->name_of(0)) return {};  // a file is both
    return valid->size();
  } catch (const Error&) {
    return {};
  }
}

int info_of_tokens(const std::string& path) {
  const format::TokenFile file(path);
  fmt::print("{}: {}, {} tokens, the largest is {}\n", file.path(), format::to_string(file.kind()),
             file.size(), file.largest());
  return 0;
}

}  // namespace

int data_info(const DataPlace& place) {
  if (is_text(place)) return text_info(place);
  if (!has_images(place.kind)) return info_of_tokens(place.path);
  print_images(place, *open_images(place, format::Split::Train));
  if (const auto valid = valid_images(place)) fmt::print("and {} images for validation\n", *valid);
  return 0;
}

}  // namespace trireme::cli
