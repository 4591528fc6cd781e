// Models with buffers whose weights live on servers: a ResNet's running statistics, as people
// train, evaluate and continue it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "support/image_files.h"
#include "support/training.h"

namespace trireme::test::served_images {
namespace {

using ::testing::HasSubstr;
using Keys = std::vector<std::string>;

/// Sums in another order, in float64, through some steps of twenty batch norms.
constexpr double kThroughBatchNorms = 1e-9;

Keys operator+(Keys a, const Keys& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Keys kInLockstep = {"sync.kind=stale", "sync.servers=2"};

class ServedImages : public testing::Test {
 protected:
  void SetUp() override {
    constexpr uint32_t kImages = 48, kSize = 8;
    for (const char* part : {"train", "t10k"}) {
      std::ofstream(folder_ / (std::string(part) + "-images-idx3-ubyte"))
          << idx_file({kImages, kSize, kSize}, some_pixels(kImages, kSize * kSize));
      std::string labels;
      for (uint32_t i = 0; i < kImages; ++i) labels += static_cast<char>(i % 10);
      std::ofstream(folder_ / (std::string(part) + "-labels-idx1-ubyte"))
          << idx_file({kImages}, labels);
    }
    std::ofstream(folder_ / "images.toml") << R"([run]
threads = 1
[model]
kind = "resnet"
image = 8
channels = 1
batch_norm = "local"
[data]
kind = "idx"
path = ")" << folder_.path() << R"("
valid = ")" << folder_.path() << R"("
[batch]
global = 12
micro = 6
[optim]
kind = "sgd"
lr = 0.02
schedule = "constant"
warmup = 0
[eval]
every = 4
)";
  }

  std::string dir(const std::string& name) const { return folder_ / name; }
  void train(const std::string& name, const Keys& keys) const {
    const auto result = run_patiently(train_arguments(folder_ / "images.toml", dir(name), keys));
    EXPECT_EQ(result.code, 0) << result.out << result.err;
  }
  void expect_near(const std::string& a, const std::string& b, const std::string& field) const {
    const auto x = numbers_of(dir(a), field), y = numbers_of(dir(b), field);
    ASSERT_EQ(x.size(), y.size()) << field;
    for (std::size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(x[i], y[i], kThroughBatchNorms) << field << " " << i;
  }
  /// How far apart the tensors of two checkpoints are, by name; -1: only one has it. What servers
  /// remember of lives and batches (ps/...) is no part of that.
  std::map<std::string, double> differences(const std::string& a, const std::string& b) const {
    const auto said = run_patiently({kTrireme, "ckpt", "diff", dir(a), dir(b)}).out;
    std::map<std::string, double> found;
    std::istringstream lines(said);
    for (std::string line; std::getline(lines, line);) {
      const auto colon = line.find(": ");
      if (colon == line.npos || line.starts_with("ps/") || line.starts_with("different: ") ||
          line.starts_with("note: ") || line.starts_with("equal: "))
        continue;
      const auto apart = line.find("max |a-b| = ");
      found[line.substr(0, colon)] = apart == line.npos ? -1 : std::stod(line.substr(apart + 12));
    }
    return found;
  }

  Scratch folder_;
};

TEST_F(ServedImages, HaveTheRunningStatisticsOfReplicas) {
  const Keys wide = {"precision.compute=float64", "mesh.replica=2", "mesh.pipe=2"};
  train("replicas", wide + Keys{"run.steps=4"});
  train("served", wide + kInLockstep + Keys{"run.steps=4"});
  expect_near("replicas", "served", "loss");
  expect_near("replicas", "served", "eval_loss");
  const std::string step = "/checkpoints/step-00000004";
  for (const auto& [name, apart] : differences("replicas" + step, "served" + step)) {
    EXPECT_GE(apart, 0) << name << " is in one of them only";
    EXPECT_LE(apart, kThroughBatchNorms) << name;
  }
  const auto evaluated = run_patiently({kTrireme, "eval", folder_ / "images.toml", "--checkpoint",
                                        dir("served"), "precision.compute=float64"});
  EXPECT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_THAT(evaluated.out, HasSubstr("loss"));
  // Without servers it goes on as the replicas do.
  for (const char* name : {"replicas", "served"}) train(name, wide + Keys{"run.steps=6"});
  expect_near("replicas", "served", "loss");
}

TEST_F(ServedImages, OfOneFreeWorkerAreOneProcessToTheBitAndContinueOnServers) {
  train("alone", {"mesh.replica=1", "run.steps=3"});
  const Keys free = {"sync.kind=free", "sync.servers=2", "mesh.replica=1", "eval.every=0"};
  train("served", free + Keys{"run.steps=2"});
  train("served", free + Keys{"run.steps=3"});
  EXPECT_EQ(texts_of(dir("alone"), "loss"), texts_of(dir("served"), "loss"));
  const std::string step = "/checkpoints/step-00000003";
  EXPECT_THAT(differences("alone" + step, "served" + step), testing::IsEmpty());
}

}  // namespace
}  // namespace trireme::test::served_images
