// Data sets of images: MNIST's files, CIFAR's, and folders.
#include "trireme/format/images/image_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/image_files.h"
#include "support/scratch.h"
#include "support/small_images.h"
#include "trireme/core/error.h"

namespace trireme::format {
namespace {

using test::bytes_of;
using test::cifar_file;
using test::idx_file;
using test::outcome_of;
using test::put_bytes;
using test::Scratch;
using test::some_pixel;
using test::some_pixels;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kImages = "train-images-idx3-ubyte";
constexpr const char* kLabels = "train-labels-idx1-ubyte";

/// Five images of 4 x 3.
void put_digits(const Scratch& scratch) {
  put_bytes(scratch / kImages, idx_file({5, 4, 3}, some_pixels(5, 12)));
  put_bytes(scratch / kLabels, idx_file({5}, std::string("\3\0\7\1\1", 5)));
}

std::string refusal_of_idx(const std::string& path) {
  return outcome_of<Error>([&] { open_idx(path, Split::Train); });
}

/// Packs a file as people do.
void gzip(const std::string& path) {
  ASSERT_EQ(::system(("gzip -f " + path).c_str()), 0);
}

TEST(Idx, GivesImagesAndLabelsPlainAndPacked) {
  const Scratch scratch;
  put_digits(scratch);
  std::string plain_identity;
  for (const bool packed : {false, true}) {
    if (packed) gzip(scratch / kImages);
    for (const std::string& path : {scratch.path(), scratch / kImages}) {
      const auto set = open_idx(path, Split::Train);
      EXPECT_EQ(set->size(), 5);
      EXPECT_EQ(set->shape(), (ImageShape{4, 3, 1}));
      EXPECT_EQ(set->classes(), 8);
      for (int64_t i = 0; i < 5; ++i) {
        EXPECT_EQ(set->label(i), "\3\0\7\1\1"[i]);
        const Image image = set->image(i);
        for (int64_t k = 0; k < 12; ++k)
          EXPECT_EQ(image.pixels[static_cast<size_t>(k)], some_pixel(i, k));
      }
      if (!packed) plain_identity = set->identity();
      EXPECT_EQ(set->identity(), plain_identity) << "the same images in another file";
      EXPECT_THROW(set->image(5), MisuseError);
    }
  }
}

TEST(Idx, AFolderHasAPartForValidation) {
  const Scratch scratch;
  put_digits(scratch);
  EXPECT_THAT(outcome_of<Error>([&] { open_idx(scratch.path(), Split::Valid); }),
              HasSubstr("has no file t10k-images-idx3-ubyte"));
  put_bytes(scratch / "t10k-images-idx3-ubyte", idx_file({1, 4, 3}, some_pixels(1, 12)));
  put_bytes(scratch / "t10k-labels-idx1-ubyte", idx_file({1}, "\2"));
  EXPECT_EQ(open_idx(scratch.path(), Split::Valid)->size(), 1);
  EXPECT_EQ(open_idx(scratch.path(), Split::Train)->size(), 5);
}

TEST(Idx, BadFilesAreRefusedWithTheNumbers) {
  const Scratch scratch;
  put_digits(scratch);
  const std::string images = scratch / kImages, good = bytes_of(images);
  const auto says = [&](const std::string& bytes) {
    put_bytes(images, bytes);
    return refusal_of_idx(images);
  };
  for (size_t cut = 1; cut < good.size(); ++cut)
    EXPECT_THAT(says(good.substr(0, cut)), HasSubstr(images)) << cut;
  EXPECT_THAT(says(good.substr(0, 40)),
              HasSubstr("5 items of 12 bytes, which takes 76 bytes, but it has 40: it was cut"));
  EXPECT_THAT(says(good + "x"), HasSubstr("but it has 77"));
  EXPECT_THAT(says(bytes_of(scratch / kLabels)), HasSubstr("begins with 00 00 08 01"));
  EXPECT_THAT(says("not an image file at all"), HasSubstr("begins with 6e 6f 74 20"));
  EXPECT_THAT(says(idx_file({5, 0, 3}, "")), HasSubstr("size 2 of 3 is 0, which is nothing"));
  EXPECT_THAT(says(idx_file({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, "")), HasSubstr("too much"));
  EXPECT_THAT(says(idx_file({4, 4, 3}, some_pixels(4, 12))),
              AllOf(HasSubstr("has 4 images"), HasSubstr("has 5 labels")));
  put_bytes(images, good);
  ::unlink((scratch / kLabels).c_str());
  EXPECT_THAT(refusal_of_idx(images), HasSubstr("train-labels-idx1-ubyte, are not there"));
  put_bytes(scratch / "digits", good);
  EXPECT_THAT(refusal_of_idx(scratch / "digits"), HasSubstr("call the two as MNIST does"));
  EXPECT_THAT(refusal_of_idx("/nowhere/train-images"), HasSubstr("no such file"));
}

TEST(Idx, BadPackedFilesAreRefused) {
  const Scratch scratch;
  put_digits(scratch);
  gzip(scratch / kImages);
  const std::string path = scratch / (std::string(kImages) + ".gz"), good = bytes_of(path);
  for (size_t cut = 3; cut < good.size(); ++cut) {
    put_bytes(path, good.substr(0, cut));
    EXPECT_THAT(refusal_of_idx(path), HasSubstr(path)) << cut;
  }
  put_bytes(path, good.substr(0, good.size() / 2));
  EXPECT_THAT(refusal_of_idx(path), HasSubstr("was cut short"));
  std::string damaged = good;
  damaged[good.size() - 6] = static_cast<char>(damaged[good.size() - 6] ^ 1);  // its checksum
  put_bytes(path, damaged);
  EXPECT_THAT(refusal_of_idx(path), HasSubstr("is a damaged .gz file"));
}

TEST(Cifar, BothKindsAndAFolderOfBatches) {
  const Scratch scratch;
  put_bytes(scratch / "data_batch_2.bin", cifar_file({9, 0}, false, 3));
  put_bytes(scratch / "data_batch_1.bin", cifar_file({1, 2, 3}));
  put_bytes(scratch / "test_batch.bin", cifar_file({4}));
  const auto set = open_cifar(scratch.path(), Split::Train);
  EXPECT_EQ(set->kind(), "CIFAR-10");
  ASSERT_EQ(set->size(), 5) << "batches in the order of their names";
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < 5; ++i) {
    labels.push_back(set->label(i));
    const Image image = set->image(i);
    for (const auto& [y, x] : {std::pair(0, 0), {0, 31}, {31, 0}, {17, 5}})
      for (int64_t c = 0; c < 3; ++c)
        EXPECT_EQ(image.pixels[static_cast<size_t>((y * 32 + x) * 3 + c)],
                  some_pixel(i, c * 1024 + y * 32 + x));
  }
  EXPECT_THAT(labels, ElementsAre(1, 2, 3, 9, 0));
  EXPECT_EQ(open_cifar(scratch.path(), Split::Valid)->label(0), 4);
  EXPECT_THAT(set->name_of(4), HasSubstr("data_batch_2.bin, image 1"));
  EXPECT_TRUE(set->class_names().empty());
  put_bytes(scratch / "batches.meta.txt",
            "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n");
  EXPECT_EQ(open_cifar(scratch.path(), Split::Train)->class_names()[3], "cat");

  put_bytes(scratch / "fine.bin", cifar_file({99, 7}, true));
  const auto fine = open_cifar(scratch / "fine.bin", Split::Train);
  EXPECT_EQ(fine->kind(), "CIFAR-100");
  EXPECT_EQ(fine->classes(), 100);
  EXPECT_EQ(fine->label(0), 99);
}

TEST(Cifar, BadFilesAreRefusedWithTheNumbers) {
  const Scratch scratch;
  const std::string path = scratch / "x.bin";
  const auto says = [&](const std::string& bytes) {
    put_bytes(path, bytes);
    return outcome_of<Error>([&] { open_cifar(path, Split::Train); });
  };
  EXPECT_THAT(says(cifar_file({1, 2}).substr(0, 5000)),
              HasSubstr("has 5000 bytes, neither records of 3073"));
  EXPECT_THAT(says(cifar_file({1, 10})), HasSubstr("image 1: label 10 is not below 10"));
  EXPECT_THAT(says(cifar_file({1, 100}, true)), HasSubstr("label 100 is not below 100"));
  EXPECT_THAT(says(""), HasSubstr("is empty"));
  put_bytes(scratch / "data_batch_1.bin", cifar_file({1}));
  put_bytes(scratch / "data_batch_2.bin", cifar_file({1}, true));
  EXPECT_THAT(outcome_of<Error>([&] { open_cifar(scratch.path(), Split::Train); }),
              HasSubstr("is a file of CIFAR-100, but"));
  EXPECT_THAT(outcome_of<Error>([&] { open_cifar(scratch.path(), Split::Valid); }),
              HasSubstr("has no test_batch.bin"));
}

TEST(ImageFolder, NumbersItsClassesByName) {
  const Scratch scratch;
  for (const char* folder : {"dog", "cat", "cat/more", ".hidden"})
    ::mkdir((scratch / folder).c_str(), 0755);
  put_bytes(scratch / "dog/1.png", test::of_array(test::kSmallPng));
  put_bytes(scratch / "cat/b.JPEG", test::of_array(test::kSmallJpeg));
  put_bytes(scratch / "cat/a.png", test::of_array(test::kSmallPng));
  put_bytes(scratch / "cat/more/c.jpg", test::of_array(test::kSmallJpeg));
  put_bytes(scratch / "cat/notes.txt", "not an image");
  const auto set = open_image_folder(scratch.path());
  EXPECT_THAT(set->class_names(), ElementsAre("cat", "dog"));
  ASSERT_EQ(set->size(), 4);
  std::string names;
  for (int64_t i = 0; i < 4; ++i) {
    names +=
        set->name_of(i).substr(scratch.path().size()) + ' ' + std::to_string(set->label(i)) + '\n';
    EXPECT_EQ(set->image(i).shape, (ImageShape{7, 11, 3}));
  }
  EXPECT_EQ(names, "/cat/a.png 0\n/cat/b.JPEG 0\n/cat/more/c.jpg 0\n/dog/1.png 1\n");
  EXPECT_EQ(set->shape(), std::nullopt);

  const auto other = open_image_folder(scratch.path(), {"ant", "cat", "dog"});
  EXPECT_EQ(other->label(3), 2) << "validation data is numbered as the training data";
  EXPECT_EQ(other->classes(), 3);
  EXPECT_THAT(outcome_of<Error>([&] {
                open_image_folder(scratch.path(), {"cat", "cow"});
              }),
              HasSubstr("/dog is none of the 2 classes of the training data"));

  const std::string before = set->identity();
  put_bytes(scratch / "dog/1.png", test::of_array(test::kSmallJpeg));
  EXPECT_NE(open_image_folder(scratch.path())->identity(), before);
  ::mkdir((scratch / "empty").c_str(), 0755);
  EXPECT_THAT(outcome_of<Error>([&] { open_image_folder(scratch.path()); }),
              HasSubstr("/empty has no .jpg, .jpeg or .png file"));
  EXPECT_THAT(outcome_of<Error>([&] { open_image_folder(scratch / "cat/more"); }),
              HasSubstr("has no folders"));
}

}  // namespace
}  // namespace trireme::format
