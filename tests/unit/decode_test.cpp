// JPEG and PNG files, and images at another size.
#include "trireme/format/images/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "support/sentence.h"
#include "support/small_images.h"
#include "trireme/core/error.h"
#include "trireme/format/images/resample.h"

namespace trireme::format {
namespace {

using test::of_array;
using test::outcome_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// What the small images show.
int wanted(int64_t x, int64_t y, int64_t channel) {
  return static_cast<int>((channel == 0 ? 23 * x : channel == 1 ? 36 * y : 5 * x * y) % 256);
}

TEST(Decode, GivesPixelsInTheirPlaces) {
  const Image png = decode_image(of_array(test::kSmallPng), "a.png");
  ASSERT_EQ(png.shape, (ImageShape{7, 11, 3}));
  const Image jpeg = decode_image(of_array(test::kSmallJpeg), "a.jpg");
  ASSERT_EQ(jpeg.shape, png.shape);
  double differ = 0;
  for (int64_t i = 0; i < png.shape.numel(); ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_EQ(png.pixels[at], wanted(i / 3 % 11, i / 33, i % 3)) << i;
    differ += std::abs(png.pixels[at] - jpeg.pixels[at]);
  }
  EXPECT_LT(differ / static_cast<double>(png.shape.numel()), 12) << "JPEG loses some";
  // The first and the last pixel as Pillow decodes this file.
  EXPECT_THAT(std::vector<int>(jpeg.pixels.begin(), jpeg.pixels.begin() + 3), ElementsAre(0, 6, 0));
  EXPECT_THAT(std::vector<int>(jpeg.pixels.end() - 3, jpeg.pixels.end()),
              ElementsAre(222, 207, 104));
}

TEST(Decode, AFileThatWasCutAnywhereIsRefused) {
  for (const std::string& whole : {of_array(test::kSmallPng), of_array(test::kSmallJpeg)}) {
    // The last 2 bytes of a JPEG file say that it ends; the last 12 of a PNG file, too.
    for (size_t cut = 0; cut + 2 < whole.size(); ++cut) {
      const std::string said =
          outcome_of<Error>([&] { decode_image(whole.substr(0, cut), "x/image 1"); });
      EXPECT_THAT(said, HasSubstr("x/image 1")) << cut;
      if (cut > 8) {
        EXPECT_THAT(said, HasSubstr(fmt::format("was cut short: it ends after {} bytes", cut)));
      }
    }
  }
}

TEST(Decode, ADamagedFileIsAnImageOrAnError) {
  for (const std::string& whole : {of_array(test::kSmallPng), of_array(test::kSmallJpeg)})
    for (size_t place = 0; place < whole.size(); ++place)
      for (const int flip : {1, 0x80, 0xFF}) {
        std::string bytes(whole);
        bytes[place] = static_cast<char>(bytes[place] ^ flip);
        try {
          const Image image = decode_image(bytes, "x", 1 << 16);
          EXPECT_EQ(static_cast<int64_t>(image.pixels.size()), image.shape.numel());
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("x "));
        }
      }
}

TEST(Decode, SaysWhatItCannotRead) {
  EXPECT_EQ(outcome_of<Error>([] { decode_image("GIF89a", "a.png"); }),
            "a.png is neither a JPEG nor a PNG image");
  EXPECT_EQ(outcome_of<Error>([] { decode_image(of_array(test::kSmallPng), "a.png", 76); }),
            "a.png says that it has 7 x 11 pixels, more than 76");
  std::string huge(of_array(test::kSmallJpeg));
  const size_t frame = huge.find("\xFF\xC0");
  huge.replace(frame + 5, 4, "\xFF\xDC\xFF\xDC");
  EXPECT_THAT(outcome_of<Error>([&] { decode_image(huge, "huge.jpg"); }),
              HasSubstr("65500 x 65500 pixels, more than 134217728"));
}

TEST(WithChannels, GreyAndColourBecomeEachOther) {
  const Image grey{{1, 2, 1}, {7, 200}};
  EXPECT_THAT(with_channels(grey, 3).pixels, ElementsAre(7, 7, 7, 200, 200, 200));
  const Image colours{{1, 3, 3}, {255, 0, 0, 0, 255, 0, 10, 20, 250}};
  EXPECT_THAT(with_channels(colours, 1).pixels, ElementsAre(76, 150, 43));
  EXPECT_EQ(with_channels(grey, 1).pixels, grey.pixels);
}

Image ramp(int64_t height, int64_t width) {
  Image image{{height, width, 1}, {}};
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x)
      image.pixels.push_back(static_cast<uint8_t>(10 * x + 3 * y));
  return image;
}

TEST(Resample, AtItsOwnSizeIsTheImage) {
  const Image image = ramp(6, 5);
  const auto same = resample(image, {0, 0, 5, 6}, 6, 5);
  for (size_t i = 0; i < same.size(); ++i) EXPECT_EQ(same[i], image.pixels[i]);
  const auto part = resample(image, {1, 2, 3, 2}, 2, 3);
  EXPECT_THAT(part, ElementsAre(16, 26, 36, 19, 29, 39));
}

TEST(Resample, OfASlopeIsTheSameSlope) {
  const Image image = ramp(24, 24);
  // Inside, the mean of a slope around a point is its value there.
  for (const int64_t size : {4, 7, 12, 30}) {
    const auto made = resample(image, {6, 6, 12, 12}, size, size);
    const double step = 12.0 / static_cast<double>(size);
    for (int64_t y = 0; y < size; ++y)
      for (int64_t x = 0; x < size; ++x) {
        const double at_x = 6 + (static_cast<double>(x) + 0.5) * step - 0.5;
        const double at_y = 6 + (static_cast<double>(y) + 0.5) * step - 0.5;
        // Taps are whole pixels, so a triangle between them is not quite even.
        EXPECT_NEAR(made[static_cast<size_t>(y * size + x)], 10 * at_x + 3 * at_y, 1.0)
            << size << ": " << x << ", " << y;
      }
  }
}

TEST(Resample, EveryOldPixelCountsAndNoneOutsideIsMadeUp) {
  Image image{{16, 16, 1}, std::vector<uint8_t>(256, 100)};
  for (const auto& [crop, size] :
       {std::pair(Crop{0, 0, 16, 16}, 3), {Crop{-2, 5.5, 30, 3}, 8}, {Crop{15.5, 15.5, 9, 9}, 2}})
    for (const float value : resample(image, crop, size, size)) EXPECT_NEAR(value, 100, 1e-4);
  image.pixels[7 * 16 + 9] = 255;
  const auto small = resample(image, {0, 0, 16, 16}, 2, 2);
  EXPECT_GT(std::accumulate(small.begin(), small.end(), 0.0f), 400.5f);
}

}  // namespace
}  // namespace trireme::format
