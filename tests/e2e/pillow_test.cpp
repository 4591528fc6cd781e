// Images as Pillow reads and resizes them, which is what most training code in Python uses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "support/scratch.h"
#include "support/training.h"
#include "trireme/format/images/decode.h"
#include "trireme/format/images/resample.h"

namespace trireme::test {
namespace {

int largest_difference(const std::string& wanted, const auto& ours) {
  int worst = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    worst = std::max(worst,
                     static_cast<int>(std::ceil(std::abs(static_cast<double>(ours[i]) -
                                                         static_cast<unsigned char>(wanted[i])))));
  return worst;
}

class Pillow : public testing::Test {
 protected:
  void SetUp() override {
    const std::string script = TRIREME_SOURCE_DIR "/tests/e2e/pillow_images.py";
    const std::string python = python_with_torch();
    if (run_patiently({python, "-c", "import PIL"}).code != 0) GTEST_SKIP() << "no Pillow";
    const auto made = run_patiently({python, script, folder_.path()});
    ASSERT_EQ(made.code, 0) << made.err;
  }
  std::string bytes(const std::string& name) const { return bytes_of(folder_ / name); }

  Scratch folder_;
};

TEST_F(Pillow, DecodesAndResizesTheSame) {
  std::ifstream cases(folder_ / "cases.txt");
  int images = 0, crops = 0;
  for (std::string line; std::getline(cases, line);) {
    std::istringstream words(line);
    std::string name;
    std::vector<double> numbers;
    words >> name;
    for (double number; words >> number;) numbers.push_back(number);
    const format::Image image = format::decode_image(bytes(name), name);
    if (numbers.size() == 3) {
      ++images;
      const std::vector<double> shape = {static_cast<double>(image.shape.height),
                                         static_cast<double>(image.shape.width),
                                         static_cast<double>(image.shape.channels)};
      ASSERT_EQ(shape, numbers) << name;
      const std::string wanted = bytes(name + ".raw");
      ASSERT_EQ(wanted.size(), image.pixels.size()) << name;
      EXPECT_EQ(largest_difference(wanted, image.pixels), 0) << name;
      continue;
    }
    const auto size = static_cast<int64_t>(numbers[4]);
    const auto planes =
        format::resample(image, {numbers[0], numbers[1], numbers[2], numbers[3]}, size, size);
    const std::string wanted = bytes(std::to_string(crops++) + ".crop");
    ASSERT_EQ(wanted.size(), planes.size());
    std::vector<float> together;  // the channels of a pixel, as Pillow has them
    for (int64_t i = 0; i < size * size; ++i)
      for (int64_t c = 0; c < image.shape.channels; ++c)
        together.push_back(std::round(planes[static_cast<std::size_t>(c * size * size + i)]));
    EXPECT_LE(largest_difference(wanted, together), 1)
        << line << ": it rounds after each direction";
  }
  EXPECT_EQ(images, 4 * 13);
  EXPECT_EQ(crops, 40);
}

}  // namespace
}  // namespace trireme::test
