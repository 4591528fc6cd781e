// `trireme run` as people use it, with real processes: what a rank is given, what is shown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "support/command.h"
#include "support/sanitized.h"

namespace trireme {
namespace {

using test::CommandOptions;
using test::CommandResult;
using test::kTrireme;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

CommandResult trireme(std::vector<std::string> args, CommandOptions options = {}) {
  args.insert(args.begin(), kTrireme);
  return test::run_command(std::move(args), std::move(options));
}

/// `trireme run OPTIONS sh -c SCRIPT`
CommandResult run_sh(std::vector<std::string> options, const std::string& script,
                     CommandOptions how = {}) {
  options.insert(options.begin(), "run");
  options.insert(options.end(), {"sh", "-c", script});
  return trireme(std::move(options), std::move(how));
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) all.push_back(line);
  return all;
}

std::string content(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// A folder that goes with the test.
struct Scratch {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("trireme-launch-" + test::unique_marker());
  Scratch() { std::filesystem::create_directories(path); }
  ~Scratch() { std::filesystem::remove_all(path); }
};

TEST(Launch, FindsTriremeBesideItself) {
  const auto result = test::run_command({kTrireme, "run", "-n", "2", "trireme", "--version"},
                                        {.environment = {{"PATH", "/usr/bin:/bin"}}});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[1] trireme 0."));
}

TEST(Launch, MoreRanksThanTheSoftLimitOfOpenFilesAllows) {
  const auto result =
      test::run_command({"bash", "-c", "ulimit -S -n 64 && exec \"$0\" run -n 30 true", kTrireme});
  EXPECT_EQ(result.code, 0) << result.err;
}

TEST(Launch, GivesEachRankItsPlace) {
  const auto result = run_sh({"-n", "3"},
                             "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK "
                             "$GROUP_RANK $GROUP_WORLD_SIZE $MASTER_ADDR");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(lines(result.out),
              UnorderedElementsAre("[0] 0 3 0 3 0 0 1 127.0.0.1", "[1] 1 3 1 3 0 0 1 127.0.0.1",
                                   "[2] 2 3 2 3 0 0 1 127.0.0.1"));
  EXPECT_EQ(result.err, "");
}

TEST(Launch, GivesAllRanksOnePortOneSecretOneRun) {
  const auto result = run_sh(
      {"-n", "4"}, "echo $MASTER_PORT $TRIREME_SECRET $TORCHELASTIC_RUN_ID $OMP_NUM_THREADS");
  std::set<std::string> different;
  for (const auto& line : lines(result.out)) different.insert(line.substr(line.find(' ')));
  ASSERT_EQ(different.size(), 1u) << result.out;
  std::istringstream words(*different.begin());
  int port = 0, threads = 0;
  std::string secret, run;
  words >> port >> secret >> run >> threads;
  EXPECT_GT(port, 1023);
  EXPECT_GE(secret.size(), 32u);
  EXPECT_FALSE(run.empty());
  EXPECT_GE(threads, 1);
}

TEST(Launch, TwoJobsShareNeitherSecretNorPort) {
  test::Command first(
      {kTrireme, "run", "sh", "-c", "echo $MASTER_PORT $TRIREME_SECRET.; sleep 60"});
  ASSERT_TRUE(first.wait_for("."));
  const auto second = run_sh({}, "echo $MASTER_PORT $TRIREME_SECRET.");
  first.signal(SIGTERM);
  const auto a = first.finish().out;
  EXPECT_NE(a.substr(0, a.find(' ')), second.out.substr(0, second.out.find(' ')));
  EXPECT_NE(a.substr(a.find(' ')), second.out.substr(second.out.find(' ')));
}

TEST(Launch, KeepsWhatTheUserHasSet) {
  const auto result = run_sh(
      {"-n", "2"}, "echo $OMP_NUM_THREADS $TRIREME_SECRET",
      {.environment = {{"OMP_NUM_THREADS", "7"}, {"TRIREME_SECRET", "sixteen bytes or more"}}});
  EXPECT_THAT(lines(result.out),
              UnorderedElementsAre("[0] 7 sixteen bytes or more", "[1] 7 sixteen bytes or more"));
}

TEST(Launch, ReadsTorchrunsOptionsAndVariables) {
  EXPECT_EQ(lines(run_sh({"--nproc_per_node=3", "--rdzv_backend", "c10d", "--rdzv-conf",
                          "timeout=9", "--standalone", "--no_python"},
                         "echo")
                      .out)
                .size(),
            3u);
  const auto from_variables =
      run_sh({}, "echo $WORLD_SIZE $MASTER_PORT",
             {.environment = {{"PET_NPROC_PER_NODE", "2"}, {"PET_MASTER_PORT", "12345"}}});
  EXPECT_THAT(lines(from_variables.out), UnorderedElementsAre("[0] 2 12345", "[1] 2 12345"));
  const auto endpoint = run_sh({"--rdzv-endpoint", "127.0.0.2:1234", "--rdzv-id", "mine"},
                               "echo $MASTER_ADDR $MASTER_PORT $TORCHELASTIC_RUN_ID");
  EXPECT_EQ(endpoint.out, "127.0.0.2 1234 mine\n");
}

TEST(Launch, NumbersTheRanksOfASecondHost) {
  const auto result =
      run_sh({"--nnodes", "2", "--node-rank", "1", "--master-addr", "a", "-n", "2"},
             "echo $RANK $WORLD_SIZE $GROUP_RANK $MASTER_ADDR $MASTER_PORT [$TRIREME_SECRET]");
  EXPECT_THAT(lines(result.out),
              UnorderedElementsAre("[2] 2 4 1 a 29500 []", "[3] 3 4 1 a 29500 []"));
}

TEST(Launch, LeavesOptionsAfterTheProgramToIt) {
  EXPECT_EQ(trireme({"run", "echo", "-n", "--nnodes", "x"}).out, "--nnodes x");
  EXPECT_EQ(run_sh({"--"}, "echo $0 $1").out, "sh\n");
  EXPECT_EQ(trireme({"run", "-n1", "--", "printf", "%s", "--help"}).out, "--help");
}

TEST(Launch, OneRankSpeaksForItself) {
  const auto result = run_sh({}, "cat; printf end; echo problem >&2", {.input = "typed\n"});
  EXPECT_EQ(result.out, "typed\nend");
  EXPECT_EQ(result.err, "problem\n");
}

TEST(Launch, OnlyRankZeroReadsStdin) {
  const auto result = trireme({"run", "-n", "3", "cat"}, {.input = "typed\n"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "[0] typed\n");
}

TEST(Launch, ShowsALastLineWithoutNewline) {
  EXPECT_THAT(lines(run_sh({"-n", "2"}, "printf whole").out),
              UnorderedElementsAre("[0] whole", "[1] whole"));
}

TEST(Launch, NeverMixesLines) {
  const auto result = run_sh({"-n", "4"}, "yes $RANK$RANK$RANK$RANK | head -n 20000");
  const auto all = lines(result.out);
  EXPECT_EQ(all.size(), 80000u);
  for (const auto& line : all) {
    const char rank = line.size() > 1 ? line[1] : '?';
    ASSERT_EQ(line, std::string("[") + rank + "] " + std::string(4, rank));
  }
}

TEST(Launch, PassesLongLinesOnInPieces) {
  const auto alone =
      run_sh({"-n", "2", "--local-ranks-filter", "1"}, "head -c 5000000 /dev/zero; echo");
  EXPECT_EQ(alone.out, "[1] " + std::string(5000000, '\0') + "\n");
}

TEST(Launch, EndsWhenNobodyReadsItsOutput) {
  test::Command command({kTrireme, "run", "-n", "2", "yes"},
                        {.deadline = std::chrono::seconds(10)});
  ASSERT_TRUE(command.wait_for("[0] y"));
  command.close_stdout();
  const auto result = command.finish();
  EXPECT_TRUE(result.in_time);
  EXPECT_EQ(result.code, 128 + SIGPIPE);
}

TEST(Launch, AReaderThatWaitsHoldsUpTheRanksAndNotTheLauncher) {
  const std::string marker = test::unique_marker();
  test::Command command({kTrireme, "run", "-n", "2", "yes"},
                        {.environment = {{"LAUNCH_MARKER", marker}}});
  ASSERT_TRUE(command.wait_for("[1] y"));
  command.signal(SIGTERM);  // nobody reads; it hears this all the same
  EXPECT_TRUE(
      test::eventually([&] { return test::processes_with("LAUNCH_MARKER", marker).size() <= 2; }));
  EXPECT_EQ(command.finish().code, 128 + SIGTERM);
}

TEST(Launch, WritesLogsPerRank) {
  const Scratch scratch;
  const auto result = run_sh({"-n", "2", "--log-dir", scratch.path, "--rdzv-id", "r", "--redirects",
                              "0:3,1:1", "--tee", "1:2"},
                             "echo out; echo err >&2");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(content(scratch.path / "r/attempt_0/0/stdout.log"), "out\n");
  EXPECT_EQ(content(scratch.path / "r/attempt_0/0/stderr.log"), "err\n");
  EXPECT_EQ(content(scratch.path / "r/attempt_0/1/stdout.log"), "out\n");
  EXPECT_EQ(content(scratch.path / "r/attempt_0/1/stderr.log"), "err\n");
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "[1] err\n");
}

TEST(Launch, ALogFolderAloneKeepsEverythingAndShowsIt) {
  const Scratch scratch;
  const auto result = run_sh({"--log-dir", scratch.path, "--rdzv-id", "r"}, "printf exact");
  EXPECT_EQ(result.out, "exact");
  EXPECT_EQ(content(scratch.path / "r/attempt_0/0/stdout.log"), "exact");
}

TEST(Launch, RunsPythonScripts) {
  const Scratch scratch;
  const auto script = scratch.path / "hello.py";
  std::ofstream(script) << "import os, sys\nprint('python', os.environ['RANK'], sys.argv[1])\n";
  EXPECT_THAT(lines(trireme({"run", "-n", "2", script, "--its-own"}).out),
              UnorderedElementsAre("[0] python 0 --its-own", "[1] python 1 --its-own"));
  EXPECT_EQ(trireme({"run", "--no-python", script}).code, 126);
}

TEST(Launch, KeepsThePortForRankZero) {
  const Scratch scratch;
  const auto script = scratch.path / "meet.py";
  std::ofstream(script) << R"(
import os, socket, sys, time
place = (sys.argv[1], int(os.environ['MASTER_PORT']))
s = socket.socket()
if os.environ['RANK'] == '0':
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(place)
    s.listen()
    print(s.accept()[0].recv(9).decode())
else:
    deadline = time.monotonic() + 20
    while s.connect_ex(('127.0.0.1', place[1])) and time.monotonic() < deadline:
        s.close()
        s = socket.socket()
    s.sendall(b'well met!')
)";
  for (const char* address : {"127.0.0.1", "0.0.0.0"}) {
    const auto result = trireme({"run", "-n", "2", script, address});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out, "[0] well met!\n");
  }
}

TEST(Launch, RefusesWhatItDoesNotUnderstand) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"run", "--no-such-option", "true"}, "--no-such-option"},
      {{"run", "-n", "many", "true"}, "'many'"},
      {{"run", "-n", "0", "true"}, "'0'"},
      {{"run"}, "no program"},
      {{"run", "--nnodes", "2", "true"}, "--node-rank"},
      {{"run", "--nnodes", "2", "--node-rank", "0", "true"}, "--master-addr"},
      {{"run", "--nnodes", "1:4", "true"}, "1:4"},
      {{"run", "--master-port", "70000", "true"}, "70000"},
      {{"run", "--tee", "3", "true"}, "--log-dir"},
      {{"run", "--log-dir", "/tmp", "--tee", "5", "true"}, "'5'"},
      {{"run", "--local-ranks-filter", "4", "true"}, "4"},
      {{"run", "--rdzv-backend", "etcd", "true"}, "etcd"},
      {{"bench", "comm", "--backend", "pigeon"}, "pigeon"},
      {{"bench", "comm", "--bytes", "4K,lots"}, "lots"},
      {{"bench", "comm", "--bytes", ""}, "--bytes is empty"},
      {{"bench", "comm", "--bytes", "1000G"}, "are free here"},
      {{"bench", "comm", "--op", "all_sum"}, "all_sum"},
      {{"bench", "comm", "--dtype", "float8"}, "float8"},
      {{"bench", "comm", "--repeat", "0"}, "--repeat 0"},
      {{"fly"}, "fly"},
  };
  for (const auto& [args, named] : cases) {
    const auto result = trireme(args);
    EXPECT_EQ(result.code, 2) << named;
    EXPECT_THAT(result.err, HasSubstr(named));
    EXPECT_EQ(lines(result.err).size(), 1u) << result.err;
  }
}

TEST(Launch, HelpsAndTellsItsVersion) {
  const auto help = trireme({"run", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("--nproc-per-node"));
  EXPECT_THAT(help.out, HasSubstr("PROGRAM"));
  EXPECT_EQ(trireme({"bench", "--help"}).code, 0);
  EXPECT_EQ(trireme({"doctor", "--help"}).code, 0);
  EXPECT_THAT(trireme({"--version"}).out, ::testing::StartsWith("trireme 0."));
}

TEST(Launch, GivesARankNoFilesOfItsOwn) {
  const std::string script = "ls /proc/self/fd | wc -l";
  const auto direct = test::run_command({"sh", "-c", script});
  EXPECT_EQ(run_sh({"-n", "2", "--local-ranks-filter", "1"}, script).out, "[1] " + direct.out);
}

TEST(Launch, IsSmall) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer's memory is not ours";
  test::Command command({kTrireme, "run", "-n", "8", "sh", "-c", "echo ready; exec sleep 60"});
  ASSERT_TRUE(command.wait_for("[7] ready"));
  const auto status = content("/proc/" + std::to_string(command.pid()) + "/status");
  const size_t peak = status.find("VmHWM:");
  ASSERT_NE(peak, status.npos);
  EXPECT_LT(std::stol(status.substr(peak + 6)), 20 * 1024);  // KiB
  command.signal(SIGTERM);
  EXPECT_EQ(command.finish().code, 128 + SIGTERM);
}

TEST(Launch, TakesLittleTime) {
  std::vector<int64_t> wall_ms;
  for (int i = 0; i < 5; ++i) wall_ms.push_back(trireme({"run", "-n", "8", "true"}).wall.count());
  EXPECT_LT(*std::ranges::min_element(wall_ms), 100);
}

}  // namespace
}  // namespace trireme
