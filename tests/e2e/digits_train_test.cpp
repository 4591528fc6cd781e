// Real images: scikit-learn's handwritten digits in MNIST's form, from the files to a trained
// model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "support/training.h"

namespace trireme::test {
namespace {

using ::testing::HasSubstr;

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

  Scratch folder_;
};

TEST_F(RealDigits, TrainToOver97Percent) {
  const auto result = train(folder_ / "run");
  ASSERT_EQ(result.code, 0) << result.err;
  const auto accuracy = numbers_of(folder_ / "run", "eval_accuracy");
  ASSERT_EQ(accuracy.size(), 2u);
  EXPECT_GT(accuracy.back(), 0.97);
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
