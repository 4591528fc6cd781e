// Training on text and on conversations, beside PyTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "support/command.h"
#include "support/real_text.h"
#include "support/scratch.h"
#include "support/training.h"
#include "trireme/core/json.h"

namespace trireme::test {
namespace {

using ::testing::HasSubstr;

CommandResult done(std::vector<std::string> argv) {
  CommandResult result = run_patiently(std::move(argv));
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  return result;
}

std::vector<double> numbers_in(const std::string& text) {
  std::istringstream lines(text);
  std::vector<double> numbers;
  for (std::string line; std::getline(lines, line);) numbers.push_back(std::stod(line));
  return numbers;
}

const std::string kSamples = TRIREME_SOURCE_DIR "/tests/e2e/text_samples.py";

/// Trains 20 steps on the data, and the same GPT in PyTorch on `samples`.
void expect_torchs_losses(const Scratch& folder, const std::string& name,
                          std::vector<std::string> data, const std::string& samples) {
  const std::string config = tiny_config(folder), dir = folder / name;
  data.insert(data.end(), {"model.seq=64", "log.samples=true", "checkpoint.keep=100"});
  std::vector<std::string> first = data;
  first.push_back("run.steps=0");
  done(train_arguments(config, dir, first));
  done(train_arguments(config, dir, data));
  const auto theirs = numbers_in(
      done({python_with_torch(), TRIREME_SOURCE_DIR "/tests/e2e/torch_gpt.py", dir, samples, "20"})
          .out);
  const std::vector<double> ours = numbers_of(dir, "loss");
  ASSERT_EQ(theirs.size(), 20u);
  ASSERT_EQ(ours.size(), 20u);
  for (size_t i = 0; i < 20; ++i) EXPECT_NEAR(ours[i], theirs[i], 1e-4 * theirs[i]) << name << i;
  EXPECT_LT(ours.back(), ours.front() - 0.1) << "it has learned something";
}

TEST(TextTraining, OnBytesGivesTheLossesOfPyTorch) {
  const Scratch folder;
  const std::string text = put_text(folder), samples = folder / "samples.u16";
  done({python_with_torch(), kSamples, "text", text, samples});
  expect_torchs_losses(folder, "bytes", {"data.kind=text", "data.path=" + text, "model.vocab=257"},
                       samples);
}

TEST(TextTraining, OnBpeOfItsOwnGivesTheLossesOfPyTorch) {
  const Scratch folder;
  const std::string text = put_text(folder), samples = folder / "samples.u16",
                    tokenizer = folder / "bpe";
  done({kTrireme, "data", "train-tokenizer", tokenizer, text, "--vocab", "1000"});
  done({python_with_torch(), kSamples, "text", text, samples, tokenizer + "/tokenizer.json"});
  expect_torchs_losses(
      folder, "bpe",
      {"data.kind=text", "data.path=" + text, "data.tokenizer=" + tokenizer, "model.vocab=1000"},
      samples);
  // The same tokens from the disk.
  done({kTrireme, "data", "build", folder / "built", text, "--tokenizer", tokenizer});
  EXPECT_EQ(bytes_of(folder / "built.bin"), bytes_of(samples));
}

/// Conversations of several lengths, and the number of tokens of answers in each.
std::string put_conversations(const Scratch& folder) {
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    core::Json messages = core::Json::array();
    for (int turn = 0; turn <= i % 3; ++turn) {
      messages.push_back(
          {{"role", "user"}, {"content", "How much is " + std::to_string(i) + " + 1?"}});
      messages.push_back(
          {{"role", "assistant"}, {"content", "It is " + std::to_string(i + 1) + "."}});
    }
    lines += core::Json{{"messages", messages}}.dump() + '\n';
  }
  put_bytes(folder / "talk.jsonl", lines);
  return folder / "talk.jsonl";
}

TEST(TextTraining, OnConversationsLearnsTheAnswersOnly) {
  const Scratch folder;
  const std::string talk = put_conversations(folder), samples = folder / "samples.jsonl",
                    tokenizer = folder / "bpe";
  done({kTrireme, "data", "train-tokenizer", tokenizer, put_text(folder), "--vocab", "300",
        "--special", "<|endoftext|>,<|im_start|>,<|im_end|>"});
  done({python_with_torch(), kSamples, "chat", talk, samples, tokenizer + "/tokenizer.json", "64"});
  expect_torchs_losses(
      folder, "talk",
      {"data.kind=jsonl", "data.path=" + talk, "data.tokenizer=" + tokenizer, "model.vocab=300"},
      samples);
  // An epoch is 4 batches of 10: its weight is the number of all targets.
  int64_t targets = 0;
  std::istringstream lines(bytes_of(samples));
  for (std::string line; std::getline(lines, line);) {
    const core::Json sample = core::Json::parse(line);
    for (const auto& each : sample["target"]) targets += each != -100;
  }
  const auto weights = numbers_of(folder / "talk", "weight");
  ASSERT_GE(weights.size(), 4u);
  EXPECT_EQ(weights[0] + weights[1] + weights[2] + weights[3], static_cast<double>(targets));

  // It answers a question in the words of its answers, and stops at the end of its turn.
  const std::string dir = folder / "longer";
  done(train_arguments(tiny_config(folder), dir,
                       {"data.kind=jsonl", "data.path=" + talk, "data.tokenizer=" + tokenizer,
                        "model.vocab=300", "model.seq=64", "run.steps=150", "optim.lr=0.01"}));
  const auto answer = done({kTrireme, "generate", dir, "--chat", "--prompt", "How much is 7 + 1?",
                            "--temperature", "0"});
  EXPECT_THAT(answer.out, testing::MatchesRegex("It is [0-9]+\\.\n"));
}

TEST(TextTraining, SaysWhatIsWrongBeforeItBegins) {
  const Scratch folder;
  const std::string config = tiny_config(folder), talk = folder / "talk.jsonl";
  put_bytes(talk,
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
            "\"content\": \"b\"}]}\n{\"messages\": [{\"role\": \"robot\", \"content\": \"x\"}]}\n");
  const auto complaint = [&](std::vector<std::string> data) {
    const auto result = run_patiently(train_arguments(config, folder / "run", std::move(data)));
    EXPECT_EQ(result.code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(
      complaint({"data.kind=jsonl", "data.path=" + talk, "model.vocab=257", "model.seq=64"}),
      HasSubstr(
          "talk.jsonl: line 2: the default chat template: line 1: the role robot is none of"));
  EXPECT_THAT(complaint({"data.kind=text", "data.path=" + talk, "model.vocab=100"}),
              HasSubstr("needs model.vocab = 257 or more, but it is 100"));
  put_bytes(folder / "tokenizer.json", "[1, 2]");
  EXPECT_THAT(complaint({"data.kind=text", "data.path=" + talk,
                         "data.tokenizer=" + (folder / "tokenizer.json")}),
              HasSubstr("tokenizer.json is not a tokenizer"));
}

}  // namespace
}  // namespace trireme::test
