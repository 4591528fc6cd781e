// `trireme completion`: what the Tab key gives, asked of real shells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "support/command.h"
#include "support/scratch.h"
#include "support/terminal.h"

namespace trireme::test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// What bash offers for a line with the cursor at its end.
std::vector<std::string> offered(const std::string& line) {
  const std::string script = "source <(" + kTrireme +
                             " completion bash)\n"
                             "compopt() { :; }\n"  // only while readline completes
                             "COMP_LINE=\"$1\" COMP_POINT=${#1}\n"
                             "_trireme\n"
                             "printf '%s\\n' \"${COMPREPLY[@]}\"\n";
  const auto result = run_command({"bash", "--norc", "-c", script, "bash", line});
  EXPECT_EQ(result.err, "");
  std::vector<std::string> words;
  std::istringstream lines(result.out);
  for (std::string word; std::getline(lines, word);)
    if (!word.empty()) words.push_back(word);
  return words;
}

TEST(Completion, BashOffersCommandsActionsAndOptions) {
  EXPECT_THAT(offered("trireme sch"), ElementsAre("schedule"));
  EXPECT_THAT(offered("trireme "), Contains("train"));
  EXPECT_THAT(offered("trireme help ve"), ElementsAre("verify"));
  EXPECT_THAT(offered("trireme ckpt re"), ElementsAre("reshard"));
  EXPECT_THAT(offered("trireme ps s"), ElementsAre("status"));
  EXPECT_THAT(offered("trireme run --ser"), ElementsAre("--servers"));
  EXPECT_THAT(offered("trireme schedule zb-"), ElementsAre("zb-h1", "zb-v"));
  EXPECT_THAT(offered("trireme run --max"), ElementsAre("--max-restarts"));
  EXPECT_THAT(offered("trireme bench checkpoint --d"), Contains("--dir"));
  EXPECT_THAT(offered("trireme data make x.bin --voc"), ElementsAre("--vocab"));
  EXPECT_THAT(offered("trireme train --dr"), ElementsAre("--dry-run"));
  EXPECT_THAT(offered("trireme bench comm --op all_"),
              ElementsAre("all_reduce", "all_gather", "all_to_all"));
  EXPECT_THAT(offered("trireme verify a.toml --plant "), Contains("average"));
  EXPECT_THAT(offered("trireme schedule 1f1b --format s"), ElementsAre("svg"));
  EXPECT_THAT(offered("trireme train conf"), IsEmpty()) << "files are readline's";
}

TEST(Completion, BashOffersKeysAndTheirValues) {
  EXPECT_THAT(offered("trireme train a.toml mesh.t"), ElementsAre("mesh.tensor="));
  EXPECT_THAT(offered("trireme verify a.toml optim.lr=1 memory.rec"),
              ElementsAre("memory.recompute="));
  EXPECT_THAT(offered("trireme bench train a.toml run.st"), ElementsAre("run.steps="));
  // bash takes '=' for the end of a word, so only what follows it is offered.
  EXPECT_THAT(offered("trireme train a.toml model.kind="),
              ElementsAre("mlp", "gpt", "llama", "resnet", "vit", "moe-gpt", "moe-llama"));
  EXPECT_THAT(offered("trireme train a.toml model.tie=f"), ElementsAre("false"));
  EXPECT_THAT(offered("trireme train a.toml pipeline.schedule=z"), ElementsAre("zb-h1", "zb-v"));
  EXPECT_THAT(offered("trireme train a.toml pipeline.schedule=p"),
              ElementsAre("pipedream", "pipedream-2bw"));
  EXPECT_THAT(offered("trireme train a.toml run.dir=x"), IsEmpty());
  EXPECT_THAT(offered("trireme train a.toml comm.backend="), Not(Contains("mpi"))) << "not built";
  EXPECT_THAT(offered("trireme run -n 2 trireme mesh.t"), IsEmpty()) << "the program's own words";
}

TEST(Completion, TabFinishesInBash) {
  Terminal bash({"bash", "--norc", "-i"}, {.environment = {{"PS1", "> "}}});
  bash.type("PATH=" + kBin + ":$PATH; source <(trireme completion bash); echo rea''dy\n");
  ASSERT_TRUE(bash.wait_for("ready"));
  bash.type("trireme sched\t");
  EXPECT_TRUE(bash.wait_for("trireme schedule ")) << bash.bytes();
  bash.type("1f\t");
  EXPECT_TRUE(bash.wait_for("schedule 1f1b ")) << bash.bytes();
  bash.type("\x15trireme train a.toml mesh.t\t");
  EXPECT_TRUE(bash.wait_for("a.toml mesh.tensor=")) << bash.bytes();
  bash.type("\x15trireme train a.toml model.kind=g\t");
  EXPECT_TRUE(bash.wait_for("model.kind=gpt ")) << bash.bytes();
}

TEST(Completion, TabFinishesInZsh) {
  if (run_command({"zsh", "-c", "true"}).code != 0) GTEST_SKIP() << "there is no zsh here";
  const Scratch home;
  Terminal zsh({"zsh", "-f", "-i"}, {.environment = {{"PS1", "> "}, {"HOME", home.path()}}});
  zsh.type("PATH=" + kBin +
           ":$PATH; autoload -U compinit; compinit -u -D; "
           "source <(trireme completion zsh); echo rea''dy\n");
  ASSERT_TRUE(zsh.wait_for("ready"));
  zsh.type("trireme sched\t");
  EXPECT_TRUE(zsh.wait_for("trireme schedule")) << zsh.bytes();
  zsh.type("\x15trireme train a.toml mesh.t\t");
  EXPECT_TRUE(zsh.wait_for("a.toml mesh.tensor=")) << zsh.bytes();
  zsh.type("\x15trireme train a.toml model.kind=g\t");
  EXPECT_TRUE(zsh.wait_for("model.kind=gpt")) << zsh.bytes();
}

TEST(Completion, OfAnotherShellIsRefused) {
  const auto result = run_command({kTrireme, "completion", "fish"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("completion bash"));
  EXPECT_EQ(run_command({"zsh", "-n", "-c", run_command({kTrireme, "completion", "zsh"}).out}).code,
            run_command({"zsh", "-c", "true"}).code);
}

TEST(Help, OfACommandIsReachedBothWays) {
  const auto one = run_command({kTrireme, "help", "train"});
  EXPECT_EQ(one.code, 0);
  EXPECT_EQ(one.out, run_command({kTrireme, "train", "--help"}).out);
  EXPECT_THAT(one.out, HasSubstr("--dry-run"));
  EXPECT_THAT(run_command({kTrireme, "help"}).out, HasSubstr("completion"));
  EXPECT_THAT(run_command({kTrireme, "help", "bench", "checkpoint"}).out, HasSubstr("--dir"));
  const auto unknown = run_command({kTrireme, "help", "fly"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("unknown command 'fly'"));
}

TEST(Help, OffersOnlyWhatIsBuilt) {
  const auto help = run_command({kTrireme, "train", "--help"}).out;
  EXPECT_THAT(help, Not(HasSubstr("mpi")));
}

}  // namespace
}  // namespace trireme::test
