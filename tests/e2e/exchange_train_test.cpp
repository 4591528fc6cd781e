// Hugging Face's models in transformers and here: the same weights, logits, text and losses, on any
// mesh.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/hf_model.h"
#include "support/scratch.h"
#include "support/training.h"

namespace trireme {
namespace {

using test::numbers_of;
using test::python_with_torch;
using test::run_patiently;
using test::Scratch;
using test::texts_of;
using ::testing::HasSubstr;

std::string must(std::vector<std::string> argv) {
  const auto result = run_patiently(std::move(argv));
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  return result.out;
}

std::string must_ckpt(std::vector<std::string> args) {
  args.insert(args.begin(), {test::kTrireme, "ckpt"});
  return must(std::move(args));
}

std::vector<std::string> peer(std::vector<std::string> args) {
  args.insert(args.begin(), {python_with_torch(), TRIREME_SOURCE_DIR "/tests/e2e/hf_peer.py"});
  return args;
}

/// The models that hf_peer.py makes, made once.
struct Transformers : testing::Test {
  static void SetUpTestSuite() {
    scratch = new Scratch;
    must(peer({"make", *scratch / "hf"}));
    std::ofstream tokens(*scratch / "tokens.bin", std::ios::binary);
    for (int i = 0; i < 6000; ++i) {
      const auto token = static_cast<uint16_t>((i * i / 7 + 3 * i) % 61);
      tokens.write(reinterpret_cast<const char*>(&token), 2);
    }
  }
  static void TearDownTestSuite() {
    delete scratch;
    scratch = nullptr;
  }
  static inline Scratch* scratch = nullptr;

  static std::string hf(const std::string& name) { return *scratch / "hf/" + name; }

  /// A configuration that starts from the folder and repeats none of its sizes.
  static std::string config(const std::string& from) {
    const std::string file = *scratch / "from.toml";
    std::ofstream(file) << "run.steps = 20\nmodel.from = \"" << from << "\"\n"
                        << "data.path = \"" << *scratch / "tokens.bin" << "\"\n"
                        << "batch.global = 6\nbatch.micro = 2\noptim.warmup = 3\nrun.threads = 1\n"
                           "precision.compute = \"float64\"\nlog.samples = true\n";
    return file;
  }

  static std::vector<double> losses(const std::string& from, const std::string& dir,
                                    std::vector<std::string> mesh = {}) {
    must(test::train_arguments(config(from), *scratch / dir, std::move(mesh)));
    return numbers_of(*scratch / dir, "loss");
  }
};

/// The kinds of models that this build trains.
const std::vector<std::string> kTrained = {"gpt2", "gpt2-untied"};

TEST_F(Transformers, ReadsWhatWeExportAndWeReadWhatItSaves) {
  std::vector<std::string> pairs{"same"};
  for (const auto& folder : std::filesystem::directory_iterator(*scratch / "hf")) {
    const std::string theirs = folder.path(), name = folder.path().filename();
    must_ckpt({"import", theirs, *scratch / name + "-ours"});
    must_ckpt({"export", *scratch / name + "-ours", *scratch / name + "-back", "--max-shard-size",
               "60000"});
    pairs.insert(pairs.end(), {theirs, *scratch / name + "-back"});
  }
  EXPECT_EQ(pairs.size(), 1u + 2 * 8);
  must(peer(pairs));
}

TEST_F(Transformers, TrainsToTheSameLosses) {
  for (const std::string& name : kTrained) {
    SCOPED_TRACE(name);
    const auto ours = losses(hf(name), "peer-" + name);
    ASSERT_EQ(ours.size(), 20u);
    std::istringstream out(
        must(peer({"losses", hf(name), *scratch / "peer-" + name, *scratch / "tokens.bin"})));
    for (const double loss : ours) {
      double theirs = 0;
      ASSERT_TRUE(out >> theirs);
      EXPECT_NEAR(loss, theirs, 1e-10 * theirs);
    }
    EXPECT_LT(ours.back(), ours.front() - 0.1) << "it learns";
  }
}

TEST_F(Transformers, StartsOnAnyMesh) {
  for (const std::string& name : kTrained) {
    SCOPED_TRACE(name);
    const std::vector<std::string> steps{"run.steps=4"};
    const auto one = losses(hf(name), name + "-one", steps);
    for (const std::string mesh : {"tensor", "shard", "pipe", "replica"}) {
      const auto cut = losses(hf(name), name + "-" + mesh, {"run.steps=4", "mesh." + mesh + "=2"});
      ASSERT_EQ(cut.size(), one.size()) << mesh;
      for (std::size_t i = 0; i < one.size(); ++i)
        EXPECT_NEAR(cut[i], one[i], 1e-12 * one[i]) << mesh << ", step " << i + 1;
    }
  }
}

TEST_F(Transformers, StartsFromACheckpointWithWeightsOnly) {
  const auto first = losses(hf("gpt2"), "first");
  // Its weights, but a new optimizer and learning rate: a checkpoint, and its export, are the same
  // start. The sizes come from either.
  must_ckpt({"export", *scratch / "first", *scratch / "first-hf"});
  const std::vector<std::string> other{"optim.lr=1e-4", "batch.global=4", "run.steps=5"};
  const auto ours = losses(*scratch / "first", "second", other);
  EXPECT_LT(ours.front(), first.front() - 0.1) << "it goes on from what was learned";
  EXPECT_EQ(ours, losses(*scratch / "first-hf", "third", other));
  // Of fewer positions.
  const auto cut = losses(*scratch / "first", "short", {"model.seq=8", "run.steps=2"});
  EXPECT_EQ(cut, losses(*scratch / "first-hf", "short-hf", {"model.seq=8", "run.steps=2"}));
}

TEST_F(Transformers, AreNotReadAgainByARunThatResumes) {
  const std::string from = *scratch / "moved";
  std::filesystem::copy(hf("gpt2"), from);
  const auto whole = losses(from, "whole", {"checkpoint.every=2"});
  losses(from, "parts", {"checkpoint.every=2", "run.steps=8", "optim.schedule=constant"});
  std::filesystem::remove_all(from);
  must(test::train_arguments(config(from), *scratch / "parts",
                             {"checkpoint.every=2", "optim.schedule=constant"}));
  const auto parts = numbers_of(*scratch / "parts", "loss");
  EXPECT_EQ(parts.size(), 20u);
  const auto result = run_patiently(test::train_arguments(config(from), *scratch / "new"));
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("there is no '" + from + "'"));
}

TEST_F(Transformers, AreRefusedWhereTheyDoNotFit) {
  const auto says = [](const std::string& from, std::vector<std::string> keys,
                       const std::string& what) {
    const auto result =
        run_patiently(test::train_arguments(config(from), *scratch / "refused", std::move(keys)));
    EXPECT_EQ(result.code, 2) << result.out;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr(what));
    EXPECT_FALSE(std::filesystem::exists(*scratch / "refused"));
  };
  says(hf("gpt2"), {"model.layers=3"}, "model.layers = 3, but model.from");
  says(hf("gpt2"), {"model.kind=mlp"}, "model.kind = \"mlp\", but model.from");
  says(hf("gpt2"), {"model.seq=99"}, "model.seq = 99");
  says(*scratch / "hf", {}, "holds no finished checkpoint");
  says(*scratch / "tokens.bin", {}, "is not a folder");
  std::filesystem::copy(hf("gpt2-untied"), *scratch / "torn");
  std::ofstream(*scratch / "torn/model.safetensors", std::ios::app) << "more";
  says(*scratch / "torn", {}, "bytes of its data belong to no tensor");
}

}  // namespace
}  // namespace trireme
