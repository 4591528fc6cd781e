// `trireme data info` and `show`, on every kind of data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>

#include "support/command.h"
#include "support/image_files.h"
#include "support/scratch.h"
#include "support/small_images.h"

namespace trireme::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

CommandResult data(std::vector<std::string> args) {
  args.insert(args.begin(), {kTrireme, "data"});
  return run_command(std::move(args), {.environment = {{"NO_COLOR", "1"}}});
}

std::string of_array(const auto& array) {
  return {reinterpret_cast<const char*>(array), sizeof array};
}

/// Two digits of 3 x 4: a bright pixel on the left, and one on the right.
void put_two_digits(const Scratch& folder) {
  std::string pixels(24, '\0');
  pixels[0] = '\xFF';
  pixels[23] = '\x80';
  put_bytes(folder / "train-images-idx3-ubyte", idx_file({2, 3, 4}, pixels));
  put_bytes(folder / "train-labels-idx1-ubyte", idx_file({2}, std::string("\1\0", 2)));
}

TEST(DataShow, DrawsImagesInCharactersAndInColours) {
  const Scratch folder;
  put_two_digits(folder);
  const std::string file = folder / "train-images-idx3-ubyte";
  EXPECT_EQ(data({"show", "0", folder.path()}).out,
            file + ", image 0: label 1, 3 x 4 pixels, grey\n@@\n\n\n");
  EXPECT_THAT(data({"show", "1", file}).out,
              HasSubstr("label 0, 3 x 4 pixels, grey\n\n\n      ++"));
  const auto colours =
      run_command({kTrireme, "data", "show", "0", file}, {.environment = {{"TRIREME_COLOR", "1"}}});
  EXPECT_THAT(colours.out, HasSubstr("\033[38;2;255;255;255;48;2;0;0;0m▀\033[38;2;0;0;0"));
  EXPECT_EQ(std::ranges::count(colours.out, '\n'), 1 + 2) << "two rows of pixels in a line";
}

TEST(DataShow, LargeImagesFitOnAScreen) {
  const Scratch folder;
  put_bytes(folder / "train-images-idx3-ubyte", idx_file({1, 300, 200}, some_pixels(1, 60'000)));
  put_bytes(folder / "train-labels-idx1-ubyte", idx_file({1}, "\1"));
  const std::string text = data({"show", "0", folder.path()}).out;
  EXPECT_EQ(std::ranges::count(text, '\n'), 1 + 57) << "38 columns of two letters, 57 rows";
}

TEST(DataInfo, SaysWhatIsThereOnOneScreen) {
  const Scratch folder;
  put_two_digits(folder);
  const std::string digits = data({"info", folder.path()}).out;
  EXPECT_THAT(digits, StartsWith(folder.path() + ": idx, 2 images, hash "));
  EXPECT_THAT(digits, AllOf(HasSubstr("3 x 4 pixels, grey\n"), HasSubstr("mean 0.0626"),
                            HasSubstr("2 classes of 1 images each\n"), Not(HasSubstr("valid"))));

  for (const char* each : {"cifar", "photos", "photos/cat", "photos/dog"})
    ::mkdir((folder / each).c_str(), 0755);
  put_bytes(folder / "cifar/data_batch_1.bin", cifar_file({3, 3, 9}));
  put_bytes(folder / "cifar/test_batch.bin", cifar_file({1}));
  const std::string cifar = data({"info", folder / "cifar"}).out;
  EXPECT_THAT(cifar, AllOf(HasSubstr("CIFAR-10, 3 images"), HasSubstr("32 x 32 pixels, colour"),
                           HasSubstr("10 classes of 0 to 2 images each"),
                           HasSubstr("and 1 images for validation")));
  put_bytes(folder / "photos/cat/1.png", of_array(kSmallPng));
  put_bytes(folder / "photos/dog/1.jpg", of_array(kSmallJpeg));
  const std::string photos = data({"info", folder / "photos"}).out;
  EXPECT_THAT(photos, AllOf(HasSubstr("images, 2 images"), HasSubstr("7 x 11 to 7 x 11 pixels"),
                            HasSubstr(" 1 dog")));
  for (const std::string& screen : {digits, cifar, photos})
    EXPECT_LE(std::ranges::count(screen, '\n'), 24);
}

TEST(DataShow, PrintsTokensAndReadsThemAsText) {
  const Scratch folder;
  std::string tokens;
  for (const char c : std::string("a file of tokens, a letter each")) tokens += {c, '\0'};
  put_bytes(folder / "x.bin", tokens);
  EXPECT_THAT(data({"show", "1", folder / "x.bin", "--seq", "5"}).out,
              HasSubstr("x.bin: tokens 5 to 9\n101 32 111 102 32\n"));
  EXPECT_THAT(data({"show", "2", folder / "x.bin", "--seq", "6", "--tokenizer", "bytes"}).out,
              HasSubstr("\nkens, \n"));
  EXPECT_THAT(data({"info", folder / "x.bin"}).out,
              HasSubstr("x.bin: raw uint16, 31 tokens, the largest is 116"));
}

TEST(DataShow, PrintsDocumentsAndLines) {
  const Scratch folder;
  ::mkdir((folder / "texts").c_str(), 0755);
  put_bytes(folder / "texts/b.txt", "the second");
  put_bytes(folder / "texts/a.txt", "caf\xC3\xA9\nand\n");
  EXPECT_EQ(data({"info", folder / "texts"}).out, folder / "texts" +
                                                      ": text, 2 documents in 2 files, 20 bytes\n"
                                                      "documents of 10 to 10 bytes\n");
  EXPECT_THAT(data({"info", folder / "texts", "--tokenizer", "bytes"}).out,
              HasSubstr("20 tokens, 1.00 bytes each"));
  EXPECT_EQ(data({"show", "1", folder / "texts"}).out, "document 1, 10 bytes\nthe second\n");
  EXPECT_EQ(data({"show", "0", folder / "texts"}).out, "document 0, 10 bytes\ncaf\xC3\xA9\nand\n");
  put_bytes(folder / "x.jsonl", "{\"text\": \"one\"}\n\n{\"messages\": []}\n");
  EXPECT_THAT(data({"info", folder / "x.jsonl"}).out, HasSubstr("x.jsonl: jsonl, 2 lines"));
  EXPECT_EQ(data({"show", "1", folder / "x.jsonl"}).out, "line 3\n{\n  \"messages\": []\n}\n");
  // With a tokenizer they are cut into tokens, and conversations show what is learned.
  EXPECT_EQ(data({"show", "1", folder / "texts", "--tokenizer", "bytes"}).out,
            "document 1, 10 bytes, 10 tokens\nt|h|e| |s|e|c|o|n|d\n");
  EXPECT_EQ(data({"show", "0", folder / "x.jsonl", "--tokenizer", "bytes"}).out,
            "line 1\n{\n  \"text\": \"one\"\n}\n");
  put_bytes(
      folder / "talk.jsonl",
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  EXPECT_THAT(data({"show", "0", folder / "talk.jsonl", "--tokenizer", "bytes"}).out,
              AllOf(HasSubstr("line 1, 24 tokens"), HasSubstr("4 in [[ ]] are learned"),
                    HasSubstr("n|t|:| [[b]][[\n|\n|end of document]]\n")));
}

TEST(DataShow, SaysInOneSentenceWhatIsWrong) {
  const Scratch folder;
  put_two_digits(folder);
  put_bytes(folder / "tokens.bin", std::string(100, '\1'));
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"show", "2", folder.path()}, "sample 2 of " + folder.path() + ": it has 2, from 0 to 1"},
      {{"show", "-1", folder.path()}, "-1"},
      {{"show", "two", folder.path()}, "'two' is not the number of a sample"},
      {{"show", "0", folder / "tokens.bin"}, "50 tokens are not enough for one sample of --seq 64"},
      {{"show", "0", folder / "tokens.bin", "--seq", "0"}, "--seq 0: must be at least 1"},
      {{"info", folder.path(), "--kind", "mnist"}, "--kind 'mnist': must be one of tokens"},
      {{"info", folder.path(), "--kind", "cifar"}, "has no data_batch_1.bin"},
      {{"info", "/nowhere"}, "cannot open /nowhere"},
      {{"show", "0"}, "use 'trireme data make OUT'"}};
  for (const auto& [args, said] : cases) {
    const auto result = data(args);
    EXPECT_NE(result.code, 0) << args.back();
    EXPECT_THAT(result.err, HasSubstr(said));
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  }
}

}  // namespace
}  // namespace trireme::test
