// Runs whose weights live on servers, as people start them: beside runs without servers, killed,
// stopped and continued.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "support/on_gpu.h"
#include "support/training.h"
#include "trireme/core/json.h"

namespace trireme::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Keys = std::vector<std::string>;

constexpr double kSumsInAnotherOrder = 1e-12;  // in float64

Keys operator+(Keys a, const Keys& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Keys kInDouble = {"precision.compute=float64", "run.threads=1"};
const Keys kLockstep = kInDouble + Keys{"sync.kind=stale", "sync.servers=2", "mesh.replica=2"};

bool is_there(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

class Served : public testing::Test {
 protected:
  const Scratch folder_;
  const std::string config_ = tiny_config(folder_);
  std::string dir(const std::string& name) const { return folder_ / name; }

  CommandResult train(const std::string& name, const Keys& keys, int code = 0) const {
    const auto result = run_patiently(train_arguments(config_, dir(name), keys));
    EXPECT_EQ(result.code, code) << result.out << result.err;
    return result;
  }
  /// The largest difference between the losses of two runs.
  double apart(const std::string& a, const std::string& b) const {
    const auto x = numbers_of(dir(a), "loss"), y = numbers_of(dir(b), "loss");
    EXPECT_EQ(x.size(), y.size());
    double most = 0;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      most = std::max(most, std::abs(x[i] - y[i]));
    return most;
  }
  /// The weights and states that differ in two checkpoints. What servers remember of lives and
  /// batches (ps/...) is no part of that.
  std::vector<std::string> differences(const std::string& a, const std::string& b) const {
    const auto said = run_patiently({kTrireme, "ckpt", "diff", dir(a), dir(b)}).out;
    EXPECT_THAT(said, AnyOf(HasSubstr("different: "), HasSubstr("equal: "))) << said;
    std::vector<std::string> found;
    std::istringstream lines(said);
    for (std::string line; std::getline(lines, line);)
      if (line.find("max |a-b| = ") != line.npos && !line.starts_with("ps/") &&
          !line.starts_with("different: "))
        found.push_back(line);
    return found;
  }
};

TEST_F(Served, LockstepOnAnyMeshHasTheLossesOfReplicas) {
  train("replicas", kInDouble + Keys{"mesh.replica=2"});
  for (const Keys& mesh : {Keys{}, Keys{"mesh.tensor=2"}, Keys{"mesh.shard=2"},
                           Keys{"mesh.pipe=2", "mesh.shard=2", "memory.shard=optimizer"}}) {
    const std::string name = mesh.empty() ? "served" : mesh[0];
    train(name, kLockstep + mesh);
    EXPECT_LE(apart("replicas", name), kSumsInAnotherOrder) << name;
    const auto norms = numbers_of(dir(name), "grad_norm");
    const auto wanted = numbers_of(dir("replicas"), "grad_norm");
    for (std::size_t i = 0; i < wanted.size(); ++i)
      EXPECT_NEAR(norms[i], wanted[i], kSumsInAnotherOrder);
  }
}

TEST_F(Served, OneFreeWorkerIsOneProcessToTheBit) {
  for (const auto& [precision, kind] :
       {std::pair("float64", "gpt"), {"float32", "gpt"}, {"float32", "llama"}}) {
    const std::string suffix = std::string(precision) + kind;
    const Keys keys = {std::string("precision.compute=") + precision, "run.threads=1",
                       "mesh.replica=1", std::string("model.kind=") + kind};
    train("alone" + suffix, keys);
    train("served" + suffix, keys + Keys{"sync.kind=free", "sync.servers=2"});
    EXPECT_EQ(texts_of(dir("alone" + suffix), "loss"), texts_of(dir("served" + suffix), "loss"));
    const std::string step = "/checkpoints/step-00000020";
    EXPECT_THAT(differences("alone" + suffix + step, "served" + suffix + step), IsEmpty());
  }
}

TEST_F(Served, AStaleRunSaysHowStaleItIsAndLearns) {
  const auto result = train(
      "stale", kInDouble + Keys{"sync.kind=stale", "sync.staleness=2", "sync.servers=2",
                                "mesh.replica=3", "eval.every=10", "sync.lr_by_staleness=true"});
  EXPECT_THAT(result.out, HasSubstr("2 servers, 3 workers, at most 2 steps stale"));
  std::ifstream file(dir("stale") + "/metrics.jsonl");
  int64_t lines = 0, batches = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    const core::Json json = core::parse_json(line, "a line");
    EXPECT_EQ(json.at("step"), lines + 1);
    for (const auto& [missed, count] : json.at("staleness").items()) {
      // Two others may each be at most 2 + 1 clocks of updates away, in both directions.
      EXPECT_LE(std::stoi(missed), 2 * 2 * (2 + 1));
      batches += count.get<int64_t>();
    }
  }
  EXPECT_EQ(lines, 20);
  EXPECT_EQ(batches, 60) << "every batch once";
  const auto losses = numbers_of(dir("stale"), "loss");
  EXPECT_LT(losses.back(), losses.front());
}

TEST_F(Served, GoesOnWithoutServersAndBackOnThem) {
  const Keys constant = {"optim.schedule=constant", "checkpoint.every=4"};
  train("plain", kInDouble + constant + Keys{"mesh.replica=2", "run.steps=18"});
  train("moving", kInDouble + constant + Keys{"mesh.replica=2", "run.steps=6"});
  const auto served = train("moving", kLockstep + constant + Keys{"run.steps=13"});
  EXPECT_THAT(served.out, HasSubstr("continues from"));
  train("moving", kInDouble + constant + Keys{"mesh.replica=1", "run.steps=18"});
  EXPECT_LE(apart("plain", "moving"), kSumsInAnotherOrder);
  const auto again = train("moving", kLockstep + constant + Keys{"run.steps=18"});
  EXPECT_THAT(again.out, HasSubstr("already at step 18"));
}

/// The processes of a run by their role, such as "server 1".
std::map<std::string, pid_t> roles_of(const std::string& marker) {
  std::map<std::string, pid_t> roles;
  for (const pid_t pid : processes_with("TRIREME_TEST_MARK", marker)) {
    std::ifstream file(fmt::format("/proc/{}/environ", pid));
    std::string role, index;
    for (std::string one; std::getline(file, one, '\0');) {
      if (one.starts_with("TRIREME_ROLE=")) role = one.substr(13);
      if (one.starts_with("TRIREME_ROLE_INDEX=")) index = one.substr(19);
    }
    if (!role.empty()) roles[role + " " + index] = pid;
  }
  return roles;
}

/// Four deaths, or as many as TRIREME_TRAIN_KILLS says.
int num_kills() {
  const char* asked = std::getenv("TRIREME_TRAIN_KILLS");
  return asked != nullptr ? std::max(4, std::stoi(asked)) : 4;
}

/// Long enough for them.
class ServedForLong : public Served {
 protected:
  ServedForLong() {
    static const Scratch shared;
    static const std::string calm = [] {
      const std::string dir = shared / "calm";
      const auto result = run_command(train_arguments(tiny_config(shared), dir, keys()),
                                      {.deadline = num_kills() * kPatience});
      EXPECT_EQ(result.code, 0) << result.err;
      return dir;
    }();
    EXPECT_EQ(::symlink(calm.c_str(), dir("calm").c_str()), 0);
  }
  static int gap() { return num_kills() > 4 ? 250 : 50; }  ///< steps from death to death
  static int steps() { return (num_kills() + 1) * gap(); }
  static Keys keys() {
    return kLockstep + Keys{"sync.servers=3", fmt::format("run.steps={}", steps()),
                            "optim.schedule=constant", "log.every=10"};
  }
  std::string last_of(const std::string& name) const {
    return fmt::format("{}/checkpoints/step-{:08}", name, steps());
  }
  std::string line_of(int step) const { return fmt::format("step {}/{} ", step, steps()); }
};

/// Each of the kinds, then any.
std::string victim(int number, std::mt19937& random) {
  constexpr std::array kFirst{"server 1", "worker 0", "manager 0", "server 2"};
  constexpr std::array kAll{"manager 0", "server 0", "server 1",
                            "server 2",  "worker 0", "worker 1"};
  return number < 4 ? kFirst.at(static_cast<size_t>(number)) : kAll.at(random() % kAll.size());
}

TEST_F(ServedForLong, KilledProcessesLeaveTheBitsOfAnUndisturbedRun) {
  const Keys copied = keys() + Keys{"sync.copies=1"};
  const std::string marker = unique_marker();
  Command run(
      train_arguments(config_, dir("killed"), copied),
      {.environment = {{"TRIREME_TEST_MARK", marker}}, .deadline = num_kills() * kPatience});
  std::mt19937 random(1);
  for (int i = 0; i < num_kills(); ++i) {
    const std::string name = victim(i, random);
    ASSERT_TRUE(run.wait_for(line_of(i * gap() + gap() - 10))) << name;
    // A death must not be the second one of a chain.
    if (i >= 4) std::this_thread::sleep_for(std::chrono::milliseconds(1600));
    pid_t pid = 0;
    ASSERT_TRUE(eventually([&] { return (pid = roles_of(marker)[name]) > 0; }, kPatience)) << name;
    ::kill(pid, SIGKILL);
    ASSERT_TRUE(run.wait_for(fmt::format("{} (pid {}) was killed by SIGKILL",
                                         name == "manager 0" ? "manager" : name, pid)));
  }
  const auto result = run.finish();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(texts_of(dir("killed"), "loss"), texts_of(dir("calm"), "loss"));
  EXPECT_EQ(texts_of(dir("killed"), "step"), texts_of(dir("calm"), "step"));
  EXPECT_THAT(differences(last_of("killed"), last_of("calm")), IsEmpty());
  EXPECT_TRUE(eventually([&] { return roles_of(marker).empty(); })) << "nobody stays behind";
}

/// Without copies a server's death takes what came after the last snapshot; all of it is done
/// again.
TEST_F(ServedForLong, WithoutCopiesAllReturnToTheLastSnapshotAndSaySo) {
  const Keys saved = keys() + Keys{"checkpoint.every=50"};
  const std::string marker = unique_marker();
  Command run(train_arguments(config_, dir("killed"), saved),
              {.environment = {{"TRIREME_TEST_MARK", marker}}, .deadline = kPatience});
  ASSERT_TRUE(run.wait_for(line_of(120)));
  ::kill(roles_of(marker).at("server 0"), SIGKILL);
  const auto result = run.finish();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out + result.err, HasSubstr("all servers return to the snapshot of step "));
  EXPECT_EQ(texts_of(dir("killed"), "step"), texts_of(dir("calm"), "step"));
  EXPECT_THAT(differences(last_of("killed"), last_of("calm")), IsEmpty());
}

/// A server comes and takes its share, another goes; the bits are those of a run where nothing
/// happened.
TEST_F(Served, ServersComeAndGoWhileItTrains) {
  const Keys keys = kLockstep + Keys{"sync.servers=2", "run.steps=1200", "optim.schedule=constant",
                                     "checkpoint.every=0", "log.every=10"};
  train("calm", keys);
  const std::string marker = unique_marker();
  const CommandOptions how{.environment = {{"TRIREME_TEST_MARK", marker}}, .deadline = kPatience};
  Command run(train_arguments(config_, dir("moving"), keys + Keys{"sync.copies=1"}), how);
  ASSERT_TRUE(run.wait_for("step 10/1200"));
  Command joined({kTrireme, "ps", "join", dir("moving")}, how);
  const auto servers = [&] {
    std::set<int64_t> holders;
    const auto said = run_patiently({kTrireme, "ps", "status", dir("moving"), "--json"});
    const core::Json status = core::parse_json(said.out, said.err.c_str());
    for (const core::Json& range : status.at("ranges")) {
      if (range.contains("joins")) return std::set<int64_t>();
      for (const core::Json& one : range.at("chain")) holders.insert(one.get<int64_t>());
    }
    return holders;
  };
  ASSERT_TRUE(eventually([&] { return servers() == std::set<int64_t>{0, 1, 2}; }, kPatience));
  ::kill(roles_of(marker).at("server 0"), SIGTERM);
  ASSERT_TRUE(eventually([&] { return servers() == std::set<int64_t>{1, 2}; }, kPatience));
  const auto result = run.finish();
  EXPECT_EQ(result.code, 0) << result.err;
  const auto ended = joined.finish();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(texts_of(dir("moving"), "loss"), texts_of(dir("calm"), "loss"));
  const std::string last = "/checkpoints/step-00001200";
  EXPECT_THAT(differences("moving" + last, "calm" + last), IsEmpty());
}

/// One process says so before any other starts.
TEST_F(Served, MoreThanServersMayKeepIsRefusedWithTheNumbers) {
  const Keys large = {"model.hidden=256", "model.vocab=4096"};
  const auto refused = train("small", kLockstep + large + Keys{"sync.server_memory_mib=8"}, 2);
  EXPECT_THAT(refused.err, HasSubstr(" bytes of dense tables and of what their rules keep"));
  EXPECT_THAT(refused.err,
              HasSubstr("but each may take 8388608; add servers, or raise server_bytes "
                        "(sync.server_memory_mib)"));
  EXPECT_EQ(std::ranges::count(refused.err, '\n'), 1) << refused.err;
  EXPECT_FALSE(is_there(dir("small")));
  train("enough", kLockstep + Keys{"sync.server_memory_mib=8", "run.steps=2"});
}

/// The weights of another run, on servers as without them.
TEST_F(Served, BeginsWithGivenWeights) {
  const Keys constant = {"optim.schedule=constant", "optim.warmup=0"};
  train("first", kInDouble + constant + Keys{"mesh.replica=1", "run.steps=3"});
  const Keys given = constant + Keys{"model.from=" + dir("first"), "run.steps=6", "run.seed=5"};
  train("replicas", kInDouble + given + Keys{"mesh.replica=2"});
  const auto said = train("served", kLockstep + given);
  EXPECT_THAT(said.out, HasSubstr("starts from " + dir("first")));
  EXPECT_LE(apart("replicas", "served"), kSumsInAnotherOrder);
  // A run that resumes does not read them again.
  EXPECT_EQ(::rename(dir("first").c_str(), dir("gone").c_str()), 0);
  train("served", kLockstep + given + Keys{"run.steps=8"});
  const auto refused = train("other", kLockstep + given, 2);
  EXPECT_THAT(refused.err, HasSubstr(dir("first")));
  const Keys adapters = {"model.from=" + dir("served"), "lora.rank=2", "lora.targets=[\"*\"]"};
  EXPECT_THAT(train("lora", kLockstep + adapters, 2).err,
              HasSubstr("adapts the weights of model.from, which servers do not keep"));
}

TEST_F(Served, CtrlCSavesAndTheRunGoesOn) {
  const Keys keys = kLockstep + Keys{"run.steps=4000", "optim.schedule=constant", "log.every=10"};
  Command run(train_arguments(config_, dir("run"), keys), {.deadline = kPatience});
  ASSERT_TRUE(run.wait_for("step 20/4000"));
  run.signal(SIGINT);
  const auto stopped = run.finish();
  EXPECT_EQ(stopped.code, 0) << stopped.err;
  EXPECT_THAT(stopped.out, HasSubstr("stopped at step "));
  const auto steps = numbers_of(dir("run"), "step");
  const auto next = std::to_string(static_cast<int64_t>(steps.back()) + 5);
  train("run", kLockstep + Keys{"run.steps=" + next, "optim.schedule=constant"});
  EXPECT_EQ(numbers_of(dir("run"), "step").back(), std::stod(next));
}

/// As `trireme train ... | head` does.
TEST_F(Served, AClosedOutputStopsTheRunSavedAndTheCodeSaysSo) {
  const Keys keys = kLockstep + Keys{"run.steps=4000", "log.every=10"};
  Command run(train_arguments(config_, dir("run"), keys), {.deadline = kPatience});
  ASSERT_TRUE(run.wait_for("step 20/4000"));
  run.close_stdout();
  EXPECT_EQ(run.finish().code, 128 + SIGPIPE);
  const auto last = static_cast<int64_t>(numbers_of(dir("run"), "step").back());
  EXPECT_LT(last, 4000);
  EXPECT_TRUE(is_there(fmt::format("{}/checkpoints/step-{:08}", dir("run"), last)));
}

/// A run that has done its work is done, whoever wanted it to stop meanwhile.
TEST_F(Served, ASignalAfterTheLastStepChangesNothing) {
  Command run(train_arguments(config_, dir("run"), kLockstep), {.deadline = kPatience});
  ASSERT_TRUE(run.wait_for("step 20/20"));
  run.signal(SIGTERM);
  const auto result = run.finish();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("done at step 20; "));
  EXPECT_FALSE(is_there(dir("run") + "/ps")) << "the manager's files go with the job";
}

TEST_F(Served, ADamagedCheckpointIsReplacedByTheOneBefore) {
  const Keys keys = kLockstep + Keys{"optim.schedule=constant", "checkpoint.every=4"};
  train("calm", keys + Keys{"run.steps=10"});
  train("hurt", keys + Keys{"run.steps=8"});
  const std::string newest = dir("hurt") + "/checkpoints/step-00000008";
  const std::string by_size = run_command({"ls", "-S", newest}).out;
  std::fstream file(newest + "/" + by_size.substr(0, by_size.find('\n')),
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-9, std::ios::end);
  file.put('!');
  file.close();
  const auto result = train("hurt", keys + Keys{"run.steps=10"});
  EXPECT_THAT(result.err, HasSubstr(newest + " is damaged and passed over: "));
  EXPECT_THAT(result.out,
              HasSubstr("continues from " + dir("hurt") + "/checkpoints/step-00000004"));
  EXPECT_TRUE(is_there(newest + ".damaged"));
  EXPECT_EQ(texts_of(dir("hurt"), "loss"), texts_of(dir("calm"), "loss"));
}

TEST_F(Served, WhatCannotBeIsRefusedInOneSentence) {
  const std::pair<Keys, const char*> cases[] = {
      {{"sync.copies=2"}, "sync.copies = 2 needs 3 servers, but sync.servers = 2"},
      {{"precision.compute=float16"}, "does not scale losses"},
      {{"compress.kind=powersgd", "precision.compute=float32"}, "works on sums of all ranks"},
      {{"comm.backend=local"}, "processes that can end one by one"},
      {{"sync.staleness=-1"}, "sync.staleness = -1"},
      {{"sync.server_memory_mib=-1"}, "sync.server_memory_mib = -1"},
      {{"sync.kind=lockstep", "sync.copies=1"}, "has no effect while sync.kind = \"lockstep\""},
      {{"sync.manager=zookeeper://x"}, "zookeeper://x"}};
  for (const auto& [keys, sentence] : cases)
    EXPECT_THAT(train("refused", kLockstep + keys, 2).err, HasSubstr(sentence));
  const auto under = run_patiently(Keys{kTrireme, "run", "-n", "2"} +
                                   train_arguments(config_, dir("refused"), kLockstep));
  EXPECT_EQ(under.code, 2);
  EXPECT_THAT(under.err, HasSubstr("needs a manager and servers, which `trireme train` starts"));
  const auto roles = run_patiently(Keys{kTrireme, "run", "--servers", "1", "--workers", "1"} +
                                   train_arguments(config_, dir("refused")));
  EXPECT_EQ(roles.code, 2);
  EXPECT_THAT(roles.err, HasSubstr("this configuration trains without them: leave --servers and "
                                   "--workers out, or set sync.kind"));
}

TEST_F(Served, ALossThatIsNotFiniteEndsTheRunAndIsNotTriedAgain) {
  const auto result = train("nan", kLockstep + Keys{"optim.lr=1e300", "optim.clip=0"}, 1);
  EXPECT_THAT(result.err, HasSubstr("not finite"));
  EXPECT_THAT(result.err, Not(HasSubstr("starting it again")));
}

TEST_F(Served, PushesMayBeCompressed) {
  const Keys keys = {"sync.kind=stale", "sync.servers=2", "mesh.replica=2", "run.threads=1",
                     "run.steps=60"};
  train("plain", keys);
  for (const std::string kind : {"int8", "topk"}) {
    train(kind, keys + Keys{"compress.kind=" + kind} +
                    (kind == "topk" ? Keys{"compress.ratio=0.2"} : Keys{}));
    const auto losses = numbers_of(dir(kind), "loss");
    EXPECT_GT(apart("plain", kind), 0);
    EXPECT_NEAR(losses.back(), numbers_of(dir("plain"), "loss").back(), 0.3);
    EXPECT_LT(numbers_of(dir(kind), "sent_mib").back(),
              numbers_of(dir("plain"), "sent_mib").back());
  }
}

/// Two workers share the GPU, and then four ranks do: gradients go to the host, weights come back.
TEST_F(Served, WorkersOnAGpuTrainAsOnTheCpu) {
  NEEDS_GPU();
  constexpr double kOtherKernels = 1e-9;  // in float64, over 20 steps
  for (const Keys& mesh : {Keys{}, Keys{"mesh.tensor=2"}}) {
    const std::string name = mesh.empty() ? "plain" : mesh[0];
    train(name + "cpu", kLockstep + mesh + Keys{"run.device=cpu"});
    train(name + "gpu", kLockstep + mesh + Keys{"run.device=cuda"});
    EXPECT_LE(apart(name + "cpu", name + "gpu"), kOtherKernels) << name;
  }
  const Keys free = {"sync.kind=free", "sync.servers=2", "mesh.replica=2", "run.device=cuda"};
  train("free", free + Keys{"run.steps=60"});
  const auto losses = numbers_of(dir("free"), "loss");
  EXPECT_LT(losses.back(), losses.front());
}

}  // namespace
}  // namespace trireme::test
