// Local updates as people run them, against PyTorch, and when they are killed and continued.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <sstream>

#include "support/training.h"

namespace trireme::test {
namespace {

using ::testing::HasSubstr;
using Keys = std::vector<std::string>;

constexpr const char* kTrireme = TRIREME_BINARY_DIR "/bin/trireme";

CommandResult must(const std::vector<std::string>& argv) {
  auto result = run_patiently(argv);
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  return result;
}

Keys operator+(Keys a, const Keys& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Keys kInDouble = {"precision.compute=float64", "checkpoint.keep=100"};

/// The number behind a word in the output of a reference.
double number_after(const std::string& word, const std::string& text) {
  const auto at = text.find(word + " ");
  EXPECT_NE(at, text.npos) << text;
  return at == text.npos ? NAN : std::stod(text.substr(at + word.size()));
}

struct Method {
  const char* name;
  int replicas;
  Keys keys;
};
void PrintTo(const Method& method, std::ostream* out) {
  *out << method.name;
}

/// A method's part of what the reference says: a difference of weights, and a drift per meeting.
void expect_as_reference(const std::string& said, const std::string& dir) {
  EXPECT_LE(number_after("difference", said), 1e-10);
  EXPECT_GT(number_after("moved", said), 1e-3) << "it has learned something";
  const auto drifts = numbers_of(dir, "drift");
  std::istringstream lines(said);
  std::size_t meetings = 0;
  for (std::string word; lines >> word && word == "drift"; ++meetings) {
    int step;
    double drift;
    lines >> step >> drift;
    ASSERT_LT(meetings, drifts.size());
    EXPECT_NEAR(drifts[meetings], drift, 1e-8) << "step " << step;  // a root of a difference
  }
  EXPECT_EQ(meetings, drifts.size());
}

// One reference process for all methods: importing torch takes longer than any of them.
TEST(AgainstThePapers, EveryMethodGivesTheCommonWeightsAndTheDriftOfAReferenceInPyTorch) {
  const Method methods[] = {
      {"bmuf", 2, {"sync.kind=bmuf", "sync.every=4", "sync.momentum=0.5"}},
      {"bmuf, classical",
       2,
       {"sync.kind=bmuf", "sync.every=4", "sync.momentum=0.5", "sync.nesterov=false",
        "sync.lr=0.8"}},
      {"bmuf, time constant", 2, {"sync.kind=bmuf", "sync.every=4", "sync.time_constant=60"}},
      {"slowmo", 2, {"sync.kind=slowmo", "sync.every=4", "sync.momentum=0.5"}},
      {"diloco", 3, {"sync.kind=diloco", "sync.every=5", "sync.lr=0.7"}},
      {"streaming",
       2,
       {"sync.kind=diloco", "sync.every=4", "sync.lr=0.7", "sync.fragments=3", "sync.delay=2"}}};
  const Scratch folder;
  const std::string tokens = folder / "tokens.u16", start = folder / "start";
  must({kTrireme, "data", "make", tokens, "--tokens", "4000", "--vocab", "64"});
  const Keys common = kInDouble + Keys{"data.kind=tokens", "data.path=" + tokens,
                                       "log.samples=true", "checkpoint.every=0"};
  const std::string config = tiny_config(folder);
  must(train_arguments(config, start, common + Keys{"run.steps=0"}));
  Keys reference = {python_with_torch(), TRIREME_SOURCE_DIR "/tests/e2e/torch_local.py", start,
                    tokens};
  for (const Method& one : methods) {
    const std::string dir = folder / one.name, replicas = std::to_string(one.replicas);
    must(train_arguments(config, dir, common + one.keys + Keys{"mesh.replica=" + replicas}));
    reference = reference + Keys{dir, replicas};
  }
  std::string said = must(reference).out;
  for (const Method& one : methods) {
    SCOPED_TRACE(one.name);
    const auto end = said.find("end\n");
    ASSERT_NE(end, said.npos) << said;
    expect_as_reference(said.substr(0, end), folder / one.name);
    said.erase(0, end + 4);
  }
}

const Keys kStreaming = {"sync.kind=diloco", "sync.every=5", "sync.lr=0.7", "sync.fragments=2",
                         "sync.delay=2"};

/// What `ckpt diff` says of the last checkpoints of two runs.
std::string last_difference(const std::string& a, const std::string& b) {
  const std::string step = "/checkpoints/step-00000020";
  const auto result = run_patiently({kTrireme, "ckpt", "diff", a + step, b + step});
  return result.code == 0 ? "" : result.out + result.err;
}

class Continued : public ::testing::TestWithParam<Method> {};

TEST_P(Continued, AfterAKillAnywhereHasTheBitsOfARunThatWasNot) {
  const auto& [name, replicas, keys] = GetParam();
  const Scratch folder;
  const std::string config = tiny_config(folder), whole = folder / "whole", cut = folder / "cut";
  // Checkpoints at steps 4, 8, ... lie between meetings. The last ones are removed from a copy of
  // the run, as if it had been killed before they were written.
  must(train_arguments(config, whole, keys + Keys{"checkpoint.keep=100"}));
  std::filesystem::copy(whole, cut, std::filesystem::copy_options::recursive);
  for (const int step : {20, 16, 12})
    std::filesystem::remove_all(fmt::format("{}/checkpoints/step-{:08}", cut, step));
  EXPECT_THAT(must(train_arguments(config, cut, keys)).out, HasSubstr("step-00000008"));
  EXPECT_EQ(texts_of(cut, "loss"), texts_of(whole, "loss"));
  EXPECT_EQ(texts_of(cut, "block_loss"), texts_of(whole, "block_loss"));
  EXPECT_EQ(last_difference(cut, whole), "");
  // The ranks of a replica add up their parts of it in another order.
  const auto a = numbers_of(cut, "drift"), b = numbers_of(whole, "drift");
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6 * b[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(
    With, Continued,
    ::testing::Values(
        Method{"postLocal", 2, {"sync.kind=post-local", "sync.after=6", "sync.every=3"}},
        Method{"bmuf", 2, {"sync.kind=bmuf", "sync.every=3", "mesh.tensor=2"}},
        Method{"slowmo", 2, {"sync.kind=slowmo", "sync.every=3", "mesh.shard=2"}},
        Method{"streamingCompressed", 2,
               kStreaming + Keys{"compress.kind=topk", "compress.ratio=0.05", "mesh.tensor=2"}},
        Method{"innerGroup",
               4,
               {"sync.kind=diloco", "sync.every=3", "mesh.replica=4", "sync.inner_group=2"}}),
    [](const auto& method) { return method.param.name; });

TEST(PostLocal, IsLockstepUntilTheSwitch) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  must(train_arguments(config, folder / "lockstep"));
  must(train_arguments(config, folder / "post",
                       {"sync.kind=post-local", "sync.after=10", "sync.every=2"}));
  auto lockstep = texts_of(folder / "lockstep", "loss"), post = texts_of(folder / "post", "loss");
  ASSERT_EQ(post.size(), 20u);
  EXPECT_NE(lockstep, post);
  lockstep.resize(10);
  post.resize(10);
  EXPECT_EQ(lockstep, post);
}

TEST(OtherReplicas, ContinueFromAMeeting) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run";
  const Keys keys = kInDouble + Keys{"sync.kind=average", "sync.every=4", "optim.kind=sgd"};
  must(train_arguments(config, dir, keys + Keys{"run.steps=6"}));
  // Three replicas begin at the mean of the two: each counted 5 of the 10 samples of a step.
  const auto three =
      must(train_arguments(config, dir, keys + Keys{"mesh.replica=3", "run.steps=7"}));
  EXPECT_THAT(three.out, HasSubstr("the checkpoint has 2 replicas: they meet"));
  const auto check =
      must({python_with_torch(), "-c",
            "import sys\n"
            "from safetensors.torch import load_file\n"
            "from pathlib import Path\n"
            "def load(step):\n"
            "    found = {}\n"
            "    for part in Path(sys.argv[1], 'checkpoints', step).glob('*.safetensors'):\n"
            "        found.update(load_file(part))\n"
            "    return found\n"
            "before, after = load('step-00000006'), load('step-00000007')\n"
            "names = [n for n in before if '/' not in n]\n"
            "print('difference', max(float(abs(after[n] - (before['replica.0/' + n] + "
            "before['replica.1/' "
            "+ n]) / 2).max()) for n in names))\n"
            "print('moved', max(float(abs(after[n] - before[n]).max()) for n in names))\n",
            dir});
  EXPECT_LE(number_after("difference", check.out), 1e-15);
  EXPECT_GT(number_after("moved", check.out), 1e-6);
  // A run in lockstep continues from there too, and a local one from lockstep.
  must(train_arguments(config, dir, kInDouble + Keys{"optim.kind=sgd", "run.steps=8"}));
  const auto back = must(train_arguments(config, dir, keys + Keys{"run.steps=12"}));
  EXPECT_THAT(back.out, HasSubstr("step-00000008"));
}

TEST(OtherReplicas, DoNotMoveWhatHasJustMet) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run";
  const Keys keys = kInDouble + Keys{"sync.kind=diloco", "sync.every=4", "checkpoint.every=4"};
  must(train_arguments(config, dir, keys + Keys{"run.steps=8"}));
  must(train_arguments(config, dir, keys + Keys{"mesh.replica=3", "run.steps=9"}));
  const std::string steps = dir + "/checkpoints/step-0000000";
  const auto result = run_patiently({kTrireme, "ckpt", "diff", steps + "8", steps + "9"});
  for (const char* name : {"\nwte.weight: ", "\nh.0.ln_1.weight: "})
    EXPECT_THAT("\n" + result.out, ::testing::Not(HasSubstr(name)));
}

TEST(PostLocal, BeginsAnewIfAsked) {
  const Scratch folder;
  const auto done = must(train_arguments(tiny_config(folder), folder / "run",
                                         {"sync.kind=post-local", "sync.after=6", "sync.every=2",
                                          "checkpoint.resume=never", "compress.kind=topk"}));
  EXPECT_THAT(done.out, HasSubstr("done at step 20"));
  EXPECT_THAT(done.out, HasSubstr("what compression of gradients has not sent yet is dropped"));
}

TEST(Meetings, AreWhereAWishToStopIsHeard) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run";
  const Keys keys = {"sync.kind=average", "sync.every=50", "run.steps=100000",
                     "checkpoint.every=0"};
  const auto stopped =
      run_patiently({"bash", "-c",
                     "$0 \"$@\" & pid=$!; until [ -s " + dir +
                         "/metrics.jsonl ]; do sleep 0.02; done; kill -TERM $pid; wait $pid",
                     train_arguments(config, dir, keys)[0], "train", config, "run.dir=" + dir,
                     keys[0], keys[1], keys[2], keys[3]});
  EXPECT_EQ(stopped.code, 128 + SIGTERM) << stopped.out << stopped.err;
  EXPECT_EQ(texts_of(dir, "loss").size() % 50, 0u) << "all replicas stop at the same step";
}

/// The tokens that all lines of a run count, whose steps grow up to `last`.
double tokens_in(const std::string& dir, double last) {
  std::ifstream file(dir + "/metrics.jsonl");
  double tokens = 0, before = 0;
  for (std::string line; std::getline(file, line);) {
    tokens += std::stod(line.substr(line.find("\"weight\":") + 9));
    const double step = std::stod(line.substr(line.find("\"step\":") + 7));
    EXPECT_GT(step, before);
    before = step;
  }
  EXPECT_EQ(before, last);
  return tokens;
}

TEST(BlocksByTime, UseEverySampleAndFollowTheirScheduleOfLearningRates) {
  const Scratch folder;
  const std::string config = tiny_config(folder), dir = folder / "run";
  const auto done = must(train_arguments(
      config, dir, {"sync.kind=diloco", "sync.seconds=0.02", "run.steps=40", "data.samples=60"}));
  EXPECT_THAT(done.out, HasSubstr("done at step 40"));
  EXPECT_EQ(tokens_in(dir, 40), 40 * 10 * 16) << "every token of 40 batches of 10 samples, once";
}

TEST(BlocksByTime, UseEverySampleOfShortEpochsAfterASwitchAndOnOtherReplicas) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const auto train = [&](const std::string& dir, const Keys& keys) {
    Keys all = {"sync.seconds=0.02", "data.samples=62", "batch.global=8"};  // 8 batches an epoch
    all.insert(all.end(), keys.begin(), keys.end());
    return must(train_arguments(config, folder / dir, all)).out;
  };
  train("switch", {"sync.kind=post-local", "sync.after=20", "run.steps=48"});
  EXPECT_EQ(tokens_in(folder / "switch", 48), 6 * 62 * 16);
  train("more", {"sync.kind=average", "run.steps=24", "optim.schedule=constant"});
  train("more", {"sync.kind=average", "run.steps=48", "optim.schedule=constant", "mesh.replica=4"});
  EXPECT_EQ(tokens_in(folder / "more", 48), 6 * 62 * 16);
}

TEST(VerifyOfLocalUpdates, SaysWhatCannotBeEqualAndProvesWhatMustBe) {
  const Scratch folder;
  const auto proved = must(
      {kTrireme, "verify", tiny_config(folder), "sync.kind=bmuf", "sync.every=3", "mesh.tensor=2"});
  EXPECT_THAT(proved.out, HasSubstr("not meant to equal one rank: sync.kind = \"bmuf\""));
  EXPECT_THAT(proved.out, ::testing::ContainsRegex("averaging after every step = lockstep .*same"));
  EXPECT_THAT(proved.out, ::testing::ContainsRegex("bmuf without momentum.*= averaging .*same"));
}

TEST(BadSync, IsOneSentenceBeforeAnythingRuns) {
  const Scratch folder;
  const std::string config = tiny_config(folder);
  const std::pair<Keys, const char*> cases[] = {
      {{"sync.kind=average", "sync.every=0"}, "sync.every = 0 is out of range"},
      {{"sync.every=4"}, "has no effect while sync.kind = \"lockstep\""},
      {{"sync.kind=diloco", "sync.every=4", "sync.fragments=5"},
       "sync.fragments = 5 cannot take turns in sync.every = 4 steps"},
      {{"sync.kind=diloco", "sync.every=4", "sync.delay=4"},
       "sync.delay = 4 must be less than sync.every = 4"},
      {{"sync.kind=bmuf", "sync.fragments=2"}, "no effect while sync.kind = \"bmuf\""},
      {{"sync.kind=average", "sync.every=4", "sync.keep_own=0.2"},
       "no effect while sync.kind = \"average\""},
      {{"sync.kind=bmuf", "sync.time_constant=3", "sync.momentum=0.5"},
       "no effect while sync.time_constant = 3"},
      {{"compress.kind=topk", "mesh.replica=1"}, "no effect while mesh.replica = 1"},
      {{"sync.kind=average", "sync.inner_group=2", "compress.kind=auto"},
       "each would choose for itself"},
      {{"sync.kind=bmuf", "sync.momentum=1"}, "sync.momentum = 1.0 is out of range"},
      {{"sync.kind=average", "sync.inner_group=3"}, "sync.inner_group = 3 does not divide"},
      {{"sync.kind=bmuf", "sync.seconds=1", "sync.every=3"}, "both say when replicas meet"},
      {{"sync.kind=average", "sync.seconds=1", "batch.global=11"}, "batch.global = 11"}};
  for (const auto& [keys, said] : cases) {
    const auto result = run_patiently(train_arguments(config, folder / "run", keys));
    EXPECT_EQ(result.code, 2) << said;
    EXPECT_THAT(result.err, HasSubstr(said));
  }
}

}  // namespace
}  // namespace trireme::test
