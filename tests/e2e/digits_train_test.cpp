// Real images: scikit-learn's handwritten digits in MNIST's form, from the files to a trained
// model.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#include "support/training.h"

namespace trireme::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kDigits = 10;
using Confusions = std::array<std::array<int, kDigits>, kDigits>;  // [true class][taken for]

/// The counts of a picture that `trireme eval --out` drew, as an XML parser reads them.
Confusions confusions_in(const std::string& svg) {
  const auto read = run_patiently(
      {python_with_torch(), "-c",
       "import re, sys, xml.etree.ElementTree as t\n"
       "for e in t.parse(sys.argv[1]).getroot().iter():\n"
       "    m = re.fullmatch(r'class (\\d+) taken for (\\d+): (\\d+)', e.text or '')\n"
       "    if m: print(*m.groups())\n",
       svg});
  EXPECT_EQ(read.code, 0) << read.err;
  Confusions counts{};
  int cells = 0;
  std::istringstream words(read.out);
  for (std::size_t row = 0, column = 0, count = 0; words >> row >> column >> count; ++cells)
    counts.at(row).at(column) = static_cast<int>(count);
  EXPECT_EQ(cells, kDigits * kDigits) << "each pair of classes once";
  return counts;
}

class RealDigits : public testing::Test {
 protected:
  void SetUp() override {
    const std::string python = python_with_torch();
    if (run_patiently({python, "-c", "import sklearn"}).code != 0)
      GTEST_SKIP() << "no scikit-learn";
    const auto made =
        run_patiently({python, TRIREME_SOURCE_DIR "/tests/e2e/digits.py", folder_.path()});
    ASSERT_EQ(made.code, 0) << made.err;
    std::ofstream(folder_ / "digits.toml") << R"([run]
epochs = 8
[model]
kind = "resnet"
image = 8
channels = 1
[data]
kind = "idx"
path = ")" << folder_.path() << R"("
valid = ")" << folder_.path() << R"("
augment = "standard"
workers = 2
[batch]
global = 50
micro = 50
[optim]
lr = 2e-3
warmup = 10
[mesh]
replica = 2
[eval]
every = 120
)";
  }
  /// `trireme train` with these overrides.
  CommandResult train(const std::string& dir, std::vector<std::string> overrides = {}) const {
    return run_patiently(train_arguments(folder_ / "digits.toml", dir, std::move(overrides)));
  }

  /// `trireme eval` of a run, which must succeed; returns what it prints.
  std::string eval(const std::string& dir, std::vector<std::string> more) const {
    more.insert(more.begin(), {kTrireme, "eval", folder_ / "digits.toml", "--checkpoint", dir});
    const auto result = run_patiently(std::move(more));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }
  /// How often each digit is among the test images.
  std::array<int, kDigits> labels() const {
    constexpr std::size_t kHeaderBytes = 8;
    std::array<int, kDigits> counts{};
    for (const char label : bytes_of(folder_ / "t10k-labels-idx1-ubyte").substr(kHeaderBytes))
      ++counts.at(static_cast<std::size_t>(label));
    return counts;
  }

  Scratch folder_;
};

TEST_F(RealDigits, TrainToOver97PercentAndAreToldApart) {
  const std::string run = folder_ / "run", svg = folder_ / "confusions.svg";
  const auto result = train(run);
  ASSERT_EQ(result.code, 0) << result.err;
  const auto accuracy = numbers_of(run, "eval_accuracy"), loss = numbers_of(run, "eval_loss");
  ASSERT_EQ(accuracy.size(), 2u);
  EXPECT_GT(accuracy.back(), 0.97);

  // The last step again: what training has measured, and which digit was taken for which.
  const std::string measured = eval(run, {"--out", svg});
  const Confusions counts = confusions_in(svg);
  int right = 0, all = 0;
  const auto there = labels();
  for (std::size_t digit = 0; digit < kDigits; ++digit) {
    int of_digit = 0;
    for (const int count : counts.at(digit)) of_digit += count;
    EXPECT_EQ(of_digit, there.at(digit)) << digit;
    right += counts.at(digit).at(digit);
    all += of_digit;
  }
  EXPECT_EQ(all, 297);
  EXPECT_NEAR(static_cast<double>(right) / all, accuracy.back(), 1e-9);
  EXPECT_THAT(bytes_of(svg), HasSubstr(fmt::format("{} of {} right", right, all)));
  EXPECT_THAT(measured, AllOf(HasSubstr("step-00000240, on 297 samples of the validation data\n"),
                              HasSubstr(fmt::format("loss        {:.4f}\n", loss.back())),
                              HasSubstr(fmt::format("accuracy    {:.2f} %  ({} of 297)\n",
                                                    100 * accuracy.back(), right)),
                              ::testing::Not(HasSubstr("perplexity"))));
  // Without data.valid they are the test images beside the others.
  const std::string again = eval(run, {"data.valid=", "eval.every=0", "mesh.replica=1"});
  EXPECT_THAT(again, AllOf(HasSubstr("on 297 samples of the test images\n"),
                           HasSubstr(fmt::format("({} of 297)\n", right))));
}

TEST_F(RealDigits, GiveTheSameLossesWithAnyNumberOfWorkersAndAfterAResume) {
  const std::vector<std::string> small = {
      "model.kind=vit", "model.layers=2", "model.hidden=32",
      "model.patch=2",  "run.epochs=0",   "run.steps=40",
      "eval.every=0",   "mesh.replica=1", "optim.schedule=constant"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), small.begin(), small.end());
    return more;
  };
  ASSERT_EQ(train(folder_ / "one", with({"data.workers=1"})).code, 0);
  ASSERT_EQ(train(folder_ / "part", with({"data.workers=3", "run.steps=17"})).code, 0);
  ASSERT_EQ(train(folder_ / "part", with({"data.workers=3"})).code, 0);
  const auto losses = texts_of(folder_ / "one", "loss");
  EXPECT_EQ(losses.size(), 40u);
  EXPECT_EQ(texts_of(folder_ / "part", "loss"), losses) << "in the second epoch, too";
}

TEST_F(RealDigits, ThatDoNotFitAreRefusedBeforeTraining) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"model.classes=9"}, "data.path: "},
      {{"model.classes=9"}, "the data has 10 classes, but model.classes = 9"},
      {{"model.image=28"}, "8 x 8 pixels, grey, but model.image = 28"},
      {{"model.channels=2"}, "model.channels = 2: images have 1 channel (grey) or 3 (colour)"},
      {{"data.path=/nowhere"}, "data.path: cannot open /nowhere: no such file"},
      {{"data.kind=cifar"}, "has no data_batch_1.bin (CIFAR-10) or train.bin (CIFAR-100)"},
      {{"model.kind=gpt"}, "data.kind = \"idx\" has images, but model.kind = \"gpt\""},
      {{"data.kind=[{kind=\"idx\"}]"}, "data.kind[0].kind = \"idx\" needs data.kind[0].path"}};
  for (const auto& [overrides, said] : cases) {
    const auto result = train(folder_ / "refused", overrides);
    EXPECT_EQ(result.code, 2) << overrides.back();
    EXPECT_THAT(result.err, HasSubstr(said));
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  }
}

TEST_F(RealDigits, AreBlendedWithThemselves) {
  const std::string source = "kind=\"idx\", path=\"" + folder_.path() + "\"";
  const auto result =
      train(folder_ / "blend",
            {"data.kind=[{" + source + "}, {" + source + ", weight=0.5}]", "run.epochs=0",
             "run.steps=3", "eval.every=0", "log.samples=true", "model.kind=vit", "model.layers=1",
             "model.hidden=16", "model.heads=2", "model.patch=4"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(numbers_of(folder_ / "blend", "loss").size(), 3u);
}

}  // namespace
}  // namespace trireme::test
