// Hugging Face's models in transformers and here: the same weights, logits, text and losses, on any
// mesh.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/hf_peer.h"
#include "support/scratch.h"

namespace trireme {
namespace {

using test::must_ckpt;
using test::must_peer;
using test::must_run;
using test::numbers_of;
using test::run_patiently;
using test::Scratch;
using ::testing::HasSubstr;

/// The models that hf_peer.py makes, and tokens to train on.
struct Transformers : testing::Test {
  static void SetUpTestSuite() {
    scratch = new Scratch;
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

  static std::string hf(const std::string& name) {
    return test::models_of_transformers() + "/" + name;
  }

  /// A configuration that starts from the folder and repeats none of its sizes.
  static std::string config(const std::string& from) {
    const std::string file = *scratch / "from.toml";
    std::ofstream(file) << "run.steps = 20\nmodel.from = \"" << from << "\"\n"
                        << "data.path = \"" << *scratch / "tokens.bin"
                        << "\"\n"
                        << "batch.global = 6\nbatch.micro = 2\noptim.warmup = 3\nrun.threads = 1\n"
                           "precision.compute = \"float64\"\nlog.samples = true\n";
    return file;
  }

  static std::vector<double> losses(const std::string& from, const std::string& dir,
                                    std::vector<std::string> mesh = {}) {
    must_run(test::train_arguments(config(from), *scratch / dir, std::move(mesh)));
    return numbers_of(*scratch / dir, "loss");
  }
};

TEST_F(Transformers, ReadsWhatWeExportAndWeReadWhatItSaves) {
  std::vector<std::string> pairs{"same"};
  for (const auto& folder : std::filesystem::directory_iterator(test::models_of_transformers())) {
    const std::string theirs = folder.path(), name = folder.path().filename();
    must_ckpt({"import", theirs, *scratch / name + "-ours"});
    must_ckpt({"export", *scratch / name + "-ours", *scratch / name + "-back", "--max-shard-size",
               "60000"});
    pairs.insert(pairs.end(), {theirs, *scratch / name + "-back"});
  }
  EXPECT_EQ(pairs.size(), 1u + 2 * test::kNumModelsOfTransformers);
  must_peer(pairs);
}

TEST_F(Transformers, TrainsToTheSameLosses) {
  const std::vector<std::string> names = {"gpt2",         "gpt2-untied", "llama", "llama-tied",
                                          "llama-scaled", "llama-yarn",  "qwen",  "qwen-tied"};
  std::vector<double> ours;
  std::vector<std::string> question{"losses", *scratch / "tokens.bin"};
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const auto some = losses(hf(name), "peer-" + name);
    ASSERT_EQ(some.size(), 20u);
    EXPECT_LT(some.back(), some.front() - 0.05) << "it learns";
    ours.insert(ours.end(), some.begin(), some.end());
    question.insert(question.end(), {hf(name), *scratch / "peer-" + name});
  }
  std::istringstream out(must_peer(question));
  for (std::size_t i = 0; i < ours.size(); ++i) {
    double theirs = 0;
    ASSERT_TRUE(out >> theirs);
    const std::string& name = names[i / 20];
    // Transformers computes RMS norms and rotary angles in float32, whatever the model's dtype.
    const double tolerance = name.starts_with("gpt2") ? 1e-9 : 2e-6;
    EXPECT_NEAR(ours[i], theirs, tolerance * theirs) << name << ", step " << i % 20 + 1;
  }
}

TEST_F(Transformers, StartsOnAnyMesh) {
  for (const std::string name : {"gpt2", "llama", "qwen"}) {
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

TEST_F(Transformers, StartWithNeighboursAsPairsAndComeBackAsHalves) {
  const auto halves = losses(hf("llama"), "halves", {"run.steps=4"});
  const auto neighbours =
      losses(hf("llama"), "neighbours", {"run.steps=4", "model.rope_pairs=neighbours"});
  for (std::size_t i = 0; i < halves.size(); ++i)
    EXPECT_NEAR(neighbours[i], halves[i], 1e-12 * halves[i]) << "step " << i + 1;
  must_ckpt({"export", *scratch / "neighbours", *scratch / "from-neighbours"});
  const auto again = losses(*scratch / "from-neighbours", "again", {"run.steps=1"});
  const auto next = losses(*scratch / "halves", "next", {"run.steps=1"});
  EXPECT_NEAR(again[0], next[0], 1e-12 * next[0]);
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

TEST_F(Transformers, AreMeasuredAsTheyLieOnTheDisk) {
  must_ckpt({"import", hf("qwen"), *scratch / "measured"});
  const auto measured = [](const std::string& folder) {
    const std::string out =
        must_run({test::kTrireme, "eval", config(hf("qwen")), "--checkpoint", folder});
    EXPECT_THAT(out, ::testing::StartsWith(folder + ", on 374 samples of the training data"));
    EXPECT_THAT(out, HasSubstr("of 5984 tokens)\n"));
    return out.substr(out.find('\n'));
  };
  EXPECT_EQ(measured(hf("qwen")), measured(*scratch / "measured"));
}

TEST_F(Transformers, AreNotReadAgainByARunThatResumes) {
  const std::string from = *scratch / "moved";
  std::filesystem::copy(hf("gpt2"), from);
  const auto whole = losses(from, "whole", {"optim.schedule=constant"});
  losses(from, "parts", {"checkpoint.every=2", "run.steps=8", "optim.schedule=constant"});
  std::filesystem::remove_all(from);
  must_run(test::train_arguments(config(from), *scratch / "parts",
                                 {"checkpoint.every=2", "optim.schedule=constant"}));
  const auto parts = numbers_of(*scratch / "parts", "loss");
  EXPECT_EQ(parts, whole);
  const auto result = run_patiently(test::train_arguments(config(from), *scratch / "new"));
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("there is no '" + from + "'"));
}

TEST_F(Transformers, AreRefusedWhereTheyDoNotFit) {
  const auto says = [](const std::string& from, std::vector<std::string> keys,
                       const std::string& what, int code = 2) {
    const auto result =
        run_patiently(test::train_arguments(config(from), *scratch / "refused", std::move(keys)));
    EXPECT_EQ(result.code, code) << result.out;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr(what));
    EXPECT_FALSE(std::filesystem::exists(*scratch / "refused"));
  };
  says(hf("gpt2"), {"model.layers=3"}, "model.layers = 3, but model.from");
  says(hf("gpt2"), {"model.kind=mlp"}, "model.kind = \"mlp\", but model.from");
  says(hf("gpt2"), {"model.seq=99"}, "model.seq = 99");
  says(test::models_of_transformers(), {}, "holds no finished checkpoint");
  says(*scratch / "tokens.bin", {}, "is not a folder");
  std::filesystem::copy(hf("gpt2-untied"), *scratch / "torn");
  std::ofstream(*scratch / "torn/model.safetensors", std::ios::app) << "more";
  says(*scratch / "torn", {}, "bytes of its data belong to no tensor", 1);
}

}  // namespace
}  // namespace trireme
