// What people look at: a run as a picture and in TensorBoard, a trained model as numbers and text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "support/hf_model.h"
#include "support/training.h"
#include "trireme/core/error.h"
#include "trireme/core/json.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Trains a tiny model of generated data; returns the folder of the run.
std::string trained(const Scratch& folder, const std::vector<std::string>& overrides) {
  const std::string dir = folder / "run";
  const auto result = run_patiently(train_arguments(tiny_config(folder), dir, overrides));
  EXPECT_EQ(result.code, 0) << result.err;
  return dir;
}

CommandResult run(std::vector<std::string> words) {
  words.insert(words.begin(), kTrireme);
  return run_patiently(std::move(words));
}

/// What TensorBoard's reader finds.
core::Json events_of(const std::string& dir) {
  const auto read =
      run_patiently({python_with_torch(), TRIREME_SOURCE_DIR "/tests/e2e/read_events.py", dir});
  EXPECT_EQ(read.code, 0) << read.err;
  return core::Json::parse(read.out, nullptr, false);
}

bool has_tensorboard() {
  return run_patiently({python_with_torch(), "-c", "import tensorboard"}).code == 0;
}

TEST(TensorBoard, ItsOwnReaderFindsEveryStepAndARunThatContinues) {
  if (!has_tensorboard()) GTEST_SKIP() << "Python has no tensorboard (scripts/setup installs it)";
  const Scratch folder;
  const std::string dir = trained(folder, {"log.tensorboard=true", "eval.every=10", "run.steps=12",
                                           "checkpoint.every=8", "optim.schedule=constant"});
  const auto compare = [&](int64_t steps) {
    const auto events = events_of(dir);
    ASSERT_TRUE(events.is_object());
    for (const char* field : {"loss", "lr", "grad_norm", "tokens_per_s"}) {
      const auto numbers = numbers_of(dir, field);
      const auto& points = events.at(field);
      ASSERT_EQ(numbers.size(), static_cast<std::size_t>(steps));
      ASSERT_EQ(points.size(), numbers.size()) << field << ": every step once";
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        EXPECT_EQ(points[i][0].get<std::size_t>(), i + 1);
        EXPECT_FLOAT_EQ(points[i][1].get<float>(), static_cast<float>(numbers[i])) << field;
      }
    }
    EXPECT_EQ(events.at("eval_loss")[0][0], 10);
  };
  compare(12);
  // Continue from step 8: steps 9 to 12 are written again, and count once.
  fs::remove_all(dir + "/checkpoints/step-00000012");
  trained(folder,
          {"log.tensorboard=true", "eval.every=10", "run.steps=16", "optim.schedule=constant"});
  compare(16);
}

TEST(Plot, DrawsARunInTheTerminalAndAsAPicture) {
  const Scratch folder;
  const std::string dir = trained(folder, {"eval.every=10", "run.seed=3"});
  const auto shown = run({"plot", dir});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out,
              AllOf(HasSubstr("20 steps, loss"), HasSubstr("loss nats"),
                    HasSubstr("speed tokens/s"), HasSubstr("learning rate"),
                    HasSubstr("gradient norm"), HasSubstr("step 20"), Not(HasSubstr("\x1b["))));
  fs::copy(dir, folder / "other", fs::copy_options::recursive);
  const std::string file = folder / "runs.svg";
  const auto drawn = run({"plot", dir, folder / "other", "--out", file});
  EXPECT_EQ(drawn.out, file + ": 2 runs\n") << drawn.err;
  const auto looked = run_patiently(
      {python_with_torch(), "-c",
       "import sys, xml.etree.ElementTree as t\n"
       "root = t.parse(sys.argv[1]).getroot()\n"
       "say = lambda tag: sum(1 for e in root.iter() if e.tag.endswith('}' + tag))\n"
       "print(say('clipPath'), say('circle'), 'prefers-color-scheme' in open(sys.argv[1]).read())",
       file});
  EXPECT_EQ(looked.out, "4 4 True\n") << "panels; evaluations of two runs" << looked.err;
}

TEST(Plot, DrawsARunThatIsBeingWritten) {
  const Scratch folder;
  put_bytes(folder / "metrics.jsonl",
            "{\"step\":1,\"loss\":2.5,\"lr\":0.1}\n{\"step\":2,\"loss\":null,\"lr\":0.1}\n"
            "{\"step\":3,\"loss\":1.5,\"lr\":0.1}\n{\"step\":4,\"lo");
  const auto shown = run({"plot", folder.path()});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("3 steps, loss 1.5000"), Not(HasSubstr("speed"))));
}

TEST(Plot, SaysWhatItCannotRead) {
  const Scratch folder;
  EXPECT_THAT(run({"plot"}).err, StartsWith("trireme plot: no run was named"));
  const auto none = run({"plot", folder.path()});
  EXPECT_EQ(none.code, 2);
  EXPECT_EQ(none.err, "trireme plot: cannot read " + folder.path() +
                          "/metrics.jsonl: No such file or directory; name the folder of a run "
                          "(its run.dir)\n");
  put_bytes(folder / "metrics.jsonl", "not JSON\n");
  EXPECT_THAT(run({"plot", folder.path()}).err, HasSubstr("has no line of a step"));
}

TEST(ConfigCommand, WritesAFileThatTrains) {
  const Scratch folder;
  const std::string file = folder / "gpt.toml";
  const auto wrote = run({"config", "new", "gpt", "--out", file});
  EXPECT_EQ(wrote.code, 0) << wrote.err;
  EXPECT_EQ(run({"config", "new", "gpt"}).out, bytes_of(file));
  const auto checked = run({"train", file, "--check"});
  EXPECT_EQ(checked.code, 0) << checked.err;
  const auto again = run({"config", "new", "gpt", "--out", file});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("is there already"));
  const auto unknown = run({"config", "new", "gtp"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err,
              StartsWith("trireme config: there is no starting point for 'gtp'; there are gpt, "));
}

TEST(Eval, GivesTheLossThatTrainingGave) {
  const Scratch folder;
  const std::string dir = trained(folder, {"eval.every=20"});
  const double loss = numbers_of(dir, "eval_loss").back();
  for (const std::string mesh : {"mesh.replica=2", "mesh.replica=1"}) {
    const auto measured =
        run({"eval", tiny_config(folder), "--checkpoint", dir, mesh, "run.dir=" + (folder / "x")});
    EXPECT_EQ(measured.code, 0) << measured.err;
    EXPECT_THAT(measured.out,
                AllOf(HasSubstr("step-00000020, on 512 samples of the validation data\n"),
                      HasSubstr(fmt::format("loss        {:.4f}\n", loss)),
                      HasSubstr(fmt::format("perplexity  {:.4g}\n", std::exp(loss))),
                      HasSubstr("of 8192 tokens)\n")))
        << mesh;
  }
  const auto other = run({"eval", tiny_config(folder), "--checkpoint", dir, "model.hidden=64"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("wte.weight"));
  EXPECT_THAT(run({"eval", tiny_config(folder)}).err, HasSubstr("--checkpoint is missing"));
}

TEST(GenerateCommand, ContinuesATextOfNumbersTheSameOnTwoRanks) {
  const Scratch folder;
  const std::string dir = trained(folder, {});
  const auto written = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"generate", dir, "--prompt", "1 2 3", "--tokens", "12"});
    const auto result = run(std::move(options));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const std::string sampled = written({"--seed", "5", "--dtype", "float64"});
  EXPECT_THAT(sampled, ::testing::MatchesRegex("1 2 3( [0-9]+){12}\n"));
  EXPECT_EQ(written({"--seed", "5", "--dtype", "float64"}), sampled);
  EXPECT_EQ(written({"--seed", "5", "--dtype", "float64", "--tensor", "2"}), sampled);
  EXPECT_NE(written({"--seed", "6", "--dtype", "float64"}), sampled);
  EXPECT_EQ(written({"--temperature", "0", "--seed", "5"}), written({"--temperature", "0"}));
  EXPECT_EQ(written({"--temperature", "0"}),
            written({"--temperature", "0", "--top-p", "0.5", "--tensor", "2"}));
}

TEST(GenerateCommand, WritesTheSameTextWithALlamaOnTwoRanks) {
  const Scratch folder;
  const std::string dir = trained(folder, {"model.kind=llama", "model.heads=4", "model.kv_heads=2",
                                           "model.tie=false", "checkpoint.every=0"});
  const auto written = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"generate", dir, "--prompt", "1 2 3", "--tokens", "12"});
    const auto result = run(std::move(options));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const std::string sampled = written({"--seed", "5", "--dtype", "float64"});
  EXPECT_THAT(sampled, ::testing::MatchesRegex("1 2 3( [0-9]+){12}\n"));
  EXPECT_EQ(written({"--seed", "5", "--dtype", "float64", "--tensor", "2"}), sampled);
  EXPECT_EQ(written({"--temperature", "0", "--tensor", "2"}), written({"--temperature", "0"}));
}

/// The head's row i is 1 + i / 10000, and what comes to the head is ones: the last token is the
/// likeliest, as far as the dtype tells rows apart. Of equals the first is taken.
TEST(GenerateCommand, ComputesInTheDtypeThatIsAskedFor) {
  constexpr int64_t kVocab = 31, kHidden = 12;
  const Scratch folder;
  HfModel model = hf_gpt2("F32", {.hidden = kHidden, .vocab = kVocab, .tie = false});
  for (auto& [name, tensor] : model.tensors) std::ranges::fill(tensor.bytes, '\0');
  const auto set = [&](const std::string& name, int64_t element, float value) {
    std::memcpy(model.tensors.at(name).bytes.data() + element * int64_t{sizeof value}, &value,
                sizeof value);
  };
  for (int64_t i = 0; i < kHidden; ++i) set("transformer.ln_f.bias", i, 1);
  for (int64_t i = 0; i < kVocab * kHidden; ++i)
    set("lm_head.weight", i, 1 + 1e-4F * static_cast<float>(i / kHidden));
  model.write(folder / "hf");
  const auto written = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"generate", folder / "hf", "--prompt", "3", "--tokens", "2",
                                     "--temperature", "0", "--device", "cpu"});
    return run(std::move(options));
  };
  EXPECT_EQ(written({}).out, "3 30 30\n");
  EXPECT_EQ(written({"--dtype", "float64"}).out, "3 30 30\n");
  EXPECT_EQ(written({"--dtype", "float16"}).out, "3 25 25\n") << "10 bits: steps of 0.00098";
  EXPECT_EQ(written({"--dtype", "bfloat16"}).out, "3 0 0\n") << "7 bits: steps of 0.0078";
  const auto unknown = written({"--dtype", "float8"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_EQ(unknown.out, "");
  EXPECT_EQ(unknown.err,
            "trireme generate: --dtype float8: must be float32, float64, bfloat16 or float16\n");
}

TEST(GenerateCommand, SaysWhatIsWrongInOneSentence) {
  const Scratch folder;
  const std::string dir = trained(folder, {"run.steps=1", "checkpoint.every=0"});
  const auto refused = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "generate");
    const auto result = run(std::move(words));
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    return result.err;
  };
  EXPECT_THAT(refused({folder / "none", "--prompt", "1"}), HasSubstr("there is no '"));
  EXPECT_THAT(refused({dir, "--prompt", "one"}), HasSubstr("'one' is not the number of a token"));
  EXPECT_THAT(refused({dir, "--prompt", "1 64"}),
              HasSubstr("the token 64, and the model knows 64"));
  EXPECT_THAT(refused({dir}), HasSubstr("--prompt is empty"));
  EXPECT_THAT(refused({dir, "--prompt", "1", "--top-p", "2"}), HasSubstr("--top-p 2"));
  EXPECT_THAT(refused({dir, "--prompt", "1", "--temperature", "hot"}), HasSubstr("--temperature"));
  EXPECT_THAT(refused({dir, "--prompt", "1", "--dtype", "int8"}), HasSubstr("--dtype int8"));
  EXPECT_THAT(refused({"--prompt", "1"}), HasSubstr("no checkpoint was named"));
  std::string many = "1";
  for (int i = 0; i < 16; ++i) many += " 1";
  EXPECT_THAT(refused({dir, "--prompt", many}), HasSubstr("17 tokens, and the model has 16 "));
}

}  // namespace
}  // namespace trireme::test
