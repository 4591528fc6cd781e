// Images as samples: normalised, cropped, changed at random.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <torch/torch.h>

#include <map>
#include <set>

#include "support/image_files.h"
#include "support/scratch.h"
#include "support/small_images.h"
#include "trireme/core/error.h"
#include "trireme/data/images.h"
#include "trireme/data/loader.h"

namespace trireme::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using data::Augmentation;
using DataPointer = std::shared_ptr<const data::Images>;

/// 20 digits of 8 x 8.
struct Digits {
  Digits() {
    std::string labels;
    for (int i = 0; i < 20; ++i) labels += static_cast<char>(i % 7);
    put_bytes(folder / "train-images-idx3-ubyte", idx_file({20, 8, 8}, some_pixels(20, 64)));
    put_bytes(folder / "train-labels-idx1-ubyte", idx_file({20}, labels));
  }
  DataPointer data(data::ImageOptions options = {}) const {
    options.channels = 1;
    if (options.size == 32) options.size = 8;
    return std::make_shared<data::Images>(format::open_idx(folder.path(), format::Split::Train),
                                          options);
  }
  Scratch folder;
};

/// One image of CIFAR-10's form.
DataPointer one_colour_image(Augmentation augmentation) {
  const Scratch folder;
  put_bytes(folder / "x.bin", cifar_file({9}));
  return std::make_shared<data::Images>(format::open_cifar(folder / "x.bin", format::Split::Train),
                                        data::ImageOptions{.augmentation = augmentation});
}

float normal(uint8_t pixel, int64_t channel = -1) {
  const float mean[] = {0.5f, 0.485f, 0.456f, 0.406f};
  const float deviation[] = {0.5f, 0.229f, 0.224f, 0.225f};
  return (static_cast<float>(pixel) / 255 - mean[channel + 1]) / deviation[channel + 1];
}

TEST(Images, AreNormalisedByConstants) {
  const Digits digits;
  const auto sample = digits.data()->get(3);
  EXPECT_EQ(sample.input.sizes(), (std::vector<int64_t>{1, 8, 8}));
  EXPECT_EQ(sample.target.item<int64_t>(), 3);
  EXPECT_EQ(sample.target.dim(), 0);
  for (int64_t i = 0; i < 64; ++i)
    EXPECT_EQ(sample.input.flatten()[i].item<float>(), normal(some_pixel(3, i)));

  const auto colours = one_colour_image(Augmentation::None)->get(0).input;
  EXPECT_EQ(colours.sizes(), (std::vector<int64_t>{3, 32, 32}));
  for (int64_t c = 0; c < 3; ++c)
    for (const auto& [y, x] : {std::pair(0, 0), {5, 31}, {31, 2}})
      EXPECT_EQ(colours[c][y][x].item<float>(), normal(some_pixel(0, c * 1024 + y * 32 + x), c));
}

/// Does `image` show a part of `whole` that was moved by (down, right), black coming in?
bool is_moved(const at::Tensor& image, const at::Tensor& whole, int64_t down, int64_t right) {
  const int64_t n = whole.size(1), pad = 8;
  const at::Tensor wide = torch::constant_pad_nd(whole, {pad, pad, pad, pad}, -1.0);
  return image.equal(wide.narrow(1, pad - down, n).narrow(2, pad - right, n));
}

TEST(Images, OfDigitsAreMovedAndNeverMirrored) {
  const Digits digits;
  const auto data = digits.data({.augmentation = Augmentation::Shift});
  std::map<std::pair<int64_t, int64_t>, int> moves;
  for (int64_t epoch = 0; epoch < 30; ++epoch)
    for (int64_t i = 0; i < 20; ++i) {
      const auto image = data->get_in_epoch(i, epoch).input, whole = data->get(i).input;
      int found = 0;
      for (int64_t down = -1; down <= 1; ++down)
        for (int64_t right = -1; right <= 1; ++right)
          if (is_moved(image, whole, down, right)) {
            ++found;
            ++moves[{down, right}];
          }
      ASSERT_EQ(found, 1) << i;
    }
  ASSERT_EQ(moves.size(), 9u);
  for (const auto& [move, count] : moves)
    EXPECT_NEAR(count, 600 / 9.0, 30) << move.first << ", " << move.second;  // 4 deviations
}

TEST(Images, AreTheSameForEveryMeshAndThread) {
  const Digits digits;
  const data::ImageOptions options{.augmentation = Augmentation::Shift};
  const auto data = digits.data(options);
  const data::Order order(1, *data, 8);
  data::Loader one(data, order, 0, 1, 0), many(digits.data(options), order, 0, 1, 0, 4);
  std::vector<at::Tensor> seen;
  for (int64_t number = 0; number < 9; ++number) {
    const auto batch = one.next();
    EXPECT_TRUE(batch.inputs.equal(many.next().inputs));
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < 3; ++rank)
      parts.push_back(data::Loader::read(*data, order, rank, 3, number).inputs);
    EXPECT_TRUE(batch.inputs.equal(torch::cat(parts)));
    seen.push_back(data->get_in_epoch(5, number / 3).input);
  }
  EXPECT_FALSE(seen[0].equal(seen[3]) && seen[3].equal(seen[6])) << "each epoch has its own";
  const auto other = digits.data({.augmentation = Augmentation::Shift, .seed = 2});
  int same = 0;
  for (int64_t i = 0; i < 20; ++i)
    same += other->get_in_epoch(i, 0).input.equal(data->get_in_epoch(i, 0).input);
  EXPECT_LT(same, 10) << "another seed, other pixels: by chance one of nine is the same";
}

TEST(Images, OfCifarAreMovedAndMirroredHalfOfTheTime) {
  const auto data = one_colour_image(Augmentation::ShiftFlip);
  int mirrored = 0;
  std::set<double> lefts;
  for (int64_t epoch = 0; epoch < 400; ++epoch) {
    const auto view = data->view_in_epoch({32, 32, 3}, 0, epoch);
    mirrored += view.mirrored;
    lefts.insert(view.crop.left);
    const auto image = data->get_in_epoch(0, epoch).input;
    const auto there = view.mirrored ? image.flip({2}) : image;
    const auto left = static_cast<int64_t>(view.crop.left),
               top = static_cast<int64_t>(view.crop.top);
    EXPECT_TRUE(there.narrow(1, std::max<int64_t>(0, -top), 28)
                    .narrow(2, std::max<int64_t>(0, -left), 28)
                    .equal(data->get(0)
                               .input.narrow(1, std::max<int64_t>(0, top), 28)
                               .narrow(2, std::max<int64_t>(0, left), 28)));
  }
  EXPECT_NEAR(mirrored, 200, 40);
  EXPECT_EQ(lefts, (std::set<double>{-4, -3, -2, -1, 0, 1, 2, 3, 4}));
}

std::string of_array(const auto& array) {
  return {reinterpret_cast<const char*>(array), sizeof array};
}

/// Two folders of images, for training.
struct Photographs {
  Photographs() {
    for (const char* name : {"cat", "dog"}) ::mkdir((folder / name).c_str(), 0755);
    put_bytes(folder / "cat/1.png", of_array(kSmallPng));
    put_bytes(folder / "dog/1.jpg", of_array(kSmallJpeg));
  }
  DataPointer data(Augmentation augmentation, int64_t size = 6) const {
    return std::make_shared<data::Images>(
        format::open_image_folder(folder.path()),
        data::ImageOptions{.size = size, .augmentation = augmentation});
  }
  Scratch folder;
};

TEST(Images, OfFoldersAreCroppedAtRandomInTraining) {
  const Photographs photographs;
  const auto data = photographs.data(Augmentation::CropFlip);
  std::vector<double> areas;
  int mirrored = 0;
  for (int64_t epoch = 0; epoch < 500; ++epoch) {
    const auto [crop, is_mirrored] = data->view_in_epoch({300, 400, 3}, 0, epoch);
    EXPECT_GE(crop.left, 0);
    EXPECT_GE(crop.top, 0);
    EXPECT_LE(crop.left + crop.width, 400);
    EXPECT_LE(crop.top + crop.height, 300);
    EXPECT_GE(crop.width / crop.height, 0.749);
    EXPECT_LE(crop.width / crop.height, 1.334);
    areas.push_back(crop.width * crop.height / 120'000);
    mirrored += is_mirrored;
  }
  EXPECT_NEAR(mirrored, 250, 45);  // 4 deviations
  EXPECT_LT(*std::ranges::min_element(areas), 0.1);
  EXPECT_GT(*std::ranges::max_element(areas), 0.8);
  const auto thin = data->view_in_epoch({1000, 10, 3}, 0, 0).crop;
  EXPECT_LE(thin.width, 10) << "no crop of the right form fits, after some attempts";
  EXPECT_LE(thin.height, 14);
  EXPECT_EQ(data->get_in_epoch(1, 7).input.sizes(), (std::vector<int64_t>{3, 6, 6}));
  EXPECT_FALSE(data->get_in_epoch(1, 7).input.equal(data->get_in_epoch(1, 8).input));
  EXPECT_TRUE(data->get_in_epoch(1, 7).input.equal(data->get_in_epoch(1, 7).input));
}

TEST(Images, OfFoldersAreCroppedInTheMiddleOtherwise) {
  const Photographs photographs;
  const auto data = photographs.data(Augmentation::None);
  const auto view = data->view_in_epoch({256, 300, 3}, 0, 0);  // for 224 of 256, as a photograph
  EXPECT_EQ(view.crop.width, 224);
  EXPECT_EQ(view.crop.left, 38);
  EXPECT_EQ(view.crop.top, 16);
  EXPECT_TRUE(data->get(0).input.equal(data->get_in_epoch(0, 3).input)) << "nothing is random";
  // The mean of a crop is that of its pixels: red is 23 x, and the middle of 11 columns is 5.
  EXPECT_NEAR(data->get(0).input[0].mean().item<float>(), normal(23 * 5, 0), 0.02);
  // An image of the wanted size is taken as it is.
  const auto whole = Photographs().data(Augmentation::None, 7)->view_in_epoch({7, 7, 3}, 0, 0).crop;
  EXPECT_EQ(whole.width, 7);
  EXPECT_EQ(whole.left, 0);
}

TEST(Images, ThatDoNotFitTheModelAreRefusedInOneSentence) {
  const Digits digits;
  const auto refusal = [&](data::ImageOptions options) {
    return outcome_of<Error>([&] { digits.data(options); });
  };
  EXPECT_THAT(refusal({.classes = 6}),
              AllOf(HasSubstr("train-images-idx3-ubyte"),
                    HasSubstr("the data has 7 classes, but model.classes = 6")));
  EXPECT_THAT(refusal({.size = 28}),
              HasSubstr("has 8 x 8 pixels, grey, but model.image = 28 and model.channels = 1; set "
                        "model.image=8 model.channels=1"));
}

TEST(Images, ThatAreDamagedEndTheirBatch) {
  const Photographs photographs;
  put_bytes(photographs.folder / "dog/2.jpg", of_array(kSmallJpeg).substr(0, 200));
  const auto data = photographs.data(Augmentation::CropFlip);
  data::Loader loader(data, data::Order(1, *data, 3), 0, 1, 0, 2);
  EXPECT_THAT(outcome_of<Error>([&] { loader.next(); }),
              HasSubstr("dog/2.jpg was cut short: it ends after 200 bytes"));
}

}  // namespace
}  // namespace trireme::test
