// Tokenizers, chat templates and data sets of tokens, beside the libraries that are known for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "support/command.h"
#include "support/scratch.h"
#include "support/training.h"

namespace trireme::test {
namespace {

using ::testing::HasSubstr;

const std::string kScripts = TRIREME_SOURCE_DIR "/tests/e2e/";

CommandResult python(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), python_with_torch());
  CommandResult result = run_patiently(std::move(arguments));
  EXPECT_EQ(result.code, 0) << result.out << result.err << "(scripts/setup installs what it needs)";
  return result;
}

TEST(Tokenizers, CutTextsAsThoseOfHuggingFaceDo) {
  const Scratch folder;
  const auto result = python(
      {kScripts + "hf_tokenizers.py", kBin + "tokenize_texts", folder.path(), "1000000", "1500"});
  for (const char* family : {"gpt2: ", "llama3: ", "qwen: ", "cases: "})
    EXPECT_THAT(result.out, HasSubstr(family));
}

TEST(ChatTemplates, PrintWhatJinja2Prints) {
  const Scratch folder;
  const auto result =
      python({kScripts + "jinja_chats.py", kBin + "render_chats", folder.path(), "300"});
  for (const char* name : {"chatml", "corners", "llama3", "tools", "turns", "zephyr"})
    EXPECT_THAT(result.out, HasSubstr(name));
}

TEST(TrainTokenizer, FindsTheMergesThatHuggingFaceFinds) {
  const Scratch folder;
  const std::string one = TRIREME_SOURCE_DIR "/docs/numbers.md",
                    two = TRIREME_SOURCE_DIR "/tests/support/fuzzed_texts.py";
  for (const char* family : {"gpt2", "llama3", "qwen"}) {
    const auto result =
        run_patiently({kTrireme, "data", "train-tokenizer", folder / family, one, two, "--vocab",
                       "2000", "--family", family, "--special", "<|endoftext|>,<|im_end|>"});
    EXPECT_EQ(result.code, 0) << result.err;
  }
  python({kScripts + "hf_trainer.py", folder.path(), "2000", one, two});
}

TEST(DataBuild, KilledAndStartedAgainWritesTheSameBytes) {
  const Scratch folder;
  std::vector<std::string> inputs;
  for (int i = 0; i < 4; ++i) {  // larger than a part each
    inputs.push_back(folder / ("input" + std::to_string(i)));
    put_bytes(inputs.back(), random_bytes(17 << 20, static_cast<unsigned>(i)));
  }
  const auto build = [&](const std::string& out) {
    std::vector<std::string> command = {kTrireme, "data", "build", folder / out, "--jobs", "1"};
    command.insert(command.end(), inputs.begin(), inputs.end());
    return command;
  };
  EXPECT_EQ(run_patiently(build("whole")).code, 0);
  {
    Command killed(build("killed"), {.deadline = kPatience});
    const std::string part = folder / "killed.building/part-00001";
    EXPECT_TRUE(eventually([&] { return ::access(part.c_str(), F_OK) == 0; }, kPatience));
    killed.signal(SIGKILL);
    EXPECT_EQ(killed.finish().code, 128 + SIGKILL);
  }
  EXPECT_NE(::access((folder / "killed.bin").c_str(), F_OK), 0) << "nothing half-written";
  const auto again = run_patiently(build("killed"));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("4 documents"));
  EXPECT_TRUE(bytes_of(folder / "killed.bin") == bytes_of(folder / "whole.bin"));
  EXPECT_TRUE(bytes_of(folder / "killed.idx") == bytes_of(folder / "whole.idx"));
  EXPECT_NE(::access((folder / "killed.building").c_str(), F_OK), 0);
  EXPECT_THAT(run_patiently(build("killed")).err, HasSubstr("is there already"));
}

}  // namespace
}  // namespace trireme::test
