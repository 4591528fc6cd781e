// `trireme run --servers S --workers W` and `trireme ps status`, with a job of real nodes, and with
// shell scripts where only the launcher is of interest.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "support/command.h"
#include "support/scratch.h"
#include "tests/ps/ps_job.h"
#include "trireme/core/json.h"
#include "trireme/launch/run.h"

namespace trireme::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) all.push_back(line);
  return all;
}

/// A job whose every process carries a mark, so that one can look for those that are left, and
/// whose temporary files have a folder of their own.
class Roles : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_TRUE(eventually([&] { return processes().empty(); })) << "a process is left";
  }

  CommandOptions how() const {
    return {.environment = {{"ROLES_MARKER", marker_},
                            {"TMPDIR", scratch_.path()},
                            {"SCRATCH", scratch_.path()}},
            .deadline = 60s};
  }
  /// `trireme run --servers 2 --workers 2 OPTIONS PROGRAM`
  static std::vector<std::string> words(std::vector<std::string> options,
                                        const std::vector<std::string>& program) {
    options.insert(options.begin(), {kTrireme, "run", "--servers", "2", "--workers", "2"});
    options.insert(options.end(), program.begin(), program.end());
    return options;
  }
  static std::vector<std::string> script(const std::string& text) { return {"sh", "-c", text}; }
  /// A job whose servers hold a copy of each other's ranges.
  static std::vector<std::string> nodes(int batches) {
    return {kBin + "ps_node", "1", std::to_string(batches)};
  }
  CommandResult run(std::vector<std::string> options, const std::string& text) const {
    return run_command(words(std::move(options), script(text)), how());
  }
  std::vector<pid_t> processes() const { return processes_with("ROLES_MARKER", marker_); }

  /// The process of a role, by what it was told.
  pid_t process_of(const std::string& role, const std::string& index) const {
    for (const pid_t pid : processes_with("TRIREME_ROLE", role)) {
      const std::string variables = bytes_of("/proc/" + std::to_string(pid) + "/environ");
      if (variables.find("ROLES_MARKER=" + marker_) != variables.npos &&
          variables.find("TRIREME_ROLE_INDEX=" + index + '\0') != variables.npos)
        return pid;
    }
    return -1;
  }

  CommandResult status(const std::string& job, std::vector<std::string> options = {}) const {
    options.insert(options.begin(), {kTrireme, "ps", "status", job});
    return run_command(std::move(options), how());
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(scratch_.path()))
      names.push_back(entry.path().filename());
    return names;
  }

  const std::string marker_ = unique_marker();
  const Scratch scratch_;
};

/// What `trireme train` asks for: a job of one server and one worker, of which only the manager is
/// shown as it is.
CommandResult run_bare(const Scratch& scratch, const std::string& text) {
  const std::string out = scratch / "out", err = scratch / "err";
  const pid_t child = ::fork();
  if (child == 0) {
    if (!std::freopen(out.c_str(), "w", stdout) || !std::freopen(err.c_str(), "w", stderr))
      ::_exit(99);
    const int code = launch::run({.command = {"sh", "-c", text},
                                  .roles = launch::Roles{.manager = scratch / "ps"},
                                  .max_restarts = 1,
                                  .display = launch::Display::Bare,
                                  .speaker = "trireme train"});
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return {.code = WEXITSTATUS(status), .out = bytes_of(out), .err = bytes_of(err)};
}

/// The manager's output is shown as it is, and of the others what they say on stderr.
TEST_F(Roles, OfTrainingShowTheManagerAndWhatOthersComplainOf) {
  const auto good = run_bare(scratch_,
                             "echo $TRIREME_ROLE; echo problem of $TRIREME_ROLE >&2; "
                             "[ $TRIREME_ROLE = worker ] && exec sleep 0.3; exec sleep 60");
  EXPECT_EQ(good.code, 0);
  EXPECT_EQ(good.out, "manager\n");
  for (const char* line :
       {"problem of manager\n", "[server 0] problem of server\n", "[worker 0] problem of worker\n"})
    EXPECT_THAT(good.err, HasSubstr(line));
  const auto bad = run_bare(scratch_,
                            "echo problem of $TRIREME_ROLE >&2; "
                            "[ $TRIREME_ROLE = worker ] && exit 7; exec sleep 60");
  EXPECT_EQ(bad.code, 7);
  EXPECT_THAT(bad.err, HasSubstr("exited with code 7; starting it again (restart 1 of 1)\n"));
  EXPECT_THAT(bad.err, HasSubstr("[worker 0] problem of worker\n"));
  EXPECT_THAT(bad.err, EndsWith("exited with code 7\n")) << "its lines were shown already";
}

void expect_plain_weights(const std::string& out, uint64_t batches) {
  const auto wanted =
      plain_loop(ps_job({.servers = 2, .workers = 2, .copies = 1, .batches = batches}));
  for (const std::string worker : {"0", "1"}) {
    std::vector<double> got;
    const std::string prefix = "[worker " + worker + "] weight ";
    for (const std::string& line : lines_of(out))
      if (line.starts_with(prefix)) got.push_back(std::stod(line.substr(prefix.size())));
    ASSERT_EQ(got.size(), wanted.size()) << out;
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-12);
  }
}

TEST_F(Roles, TrainAsOneProcess) {
  const auto result = run_command(words({}, nodes(60)), how());
  EXPECT_EQ(result.code, 0) << result.err;
  expect_plain_weights(result.out, 60);
  EXPECT_THAT(files(), IsEmpty()) << "the manager's folder goes with the job";
}

TEST_F(Roles, OneOfEachMayBeKilled) {
  constexpr int kBatches = 1000;
  Command job(words({}, nodes(kBatches)), how());
  ASSERT_TRUE(job.wait_for("[worker 0] step "));
  ASSERT_TRUE(job.wait_for("[worker 1] step "));
  std::vector<std::string> said;
  const auto kill_one = [&](const std::string& role, const std::string& index) {
    const pid_t pid = process_of(role, index);
    ASSERT_GT(pid, 0) << role;
    ::kill(pid, SIGKILL);
    const std::string name = role == "manager" ? role : role + " " + index;
    said.push_back(
        fmt::format("trireme run: {} (pid {}) was killed by SIGKILL; starting it again "
                    "(restart 1 of 100)",
                    name, pid));
    ASSERT_TRUE(job.wait_for(said.back()));
    ASSERT_TRUE(eventually([&, pid] { return process_of(role, index) > 0; }));
  };
  kill_one("worker", "1");
  ASSERT_TRUE(job.wait_for("[worker 1] step "));  // it works again
  kill_one("manager", "0");
  std::this_thread::sleep_for(1s);  // a death must not be the second one of a chain
  kill_one("server", "0");
  const auto result = job.finish();
  EXPECT_EQ(result.code, 0) << result.err;
  expect_plain_weights(result.out, kBatches);
}

TEST_F(Roles, EachIsToldWhatItIs) {
  const auto result = run({"-n", "2"},
                          "echo $TRIREME_ROLE $TRIREME_ROLE_INDEX of $TRIREME_PS_SERVERS "
                          "$TRIREME_PS_WORKERS x $TRIREME_PS_RANKS, rank $RANK of $WORLD_SIZE, "
                          "local $LOCAL_RANK of $LOCAL_WORLD_SIZE, host $GROUP_RANK $MASTER_ADDR; "
                          "[ $TRIREME_ROLE = worker ] || exec sleep 60");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(lines_of(result.out),
              UnorderedElementsAre(
                  "[manager] manager 0 of 2 2 x 2, rank 0 of 1, local 0 of 1, host 0 127.0.0.1",
                  "[server 0] server 0 of 2 2 x 2, rank 0 of 1, local 0 of 1, host 0 127.0.0.1",
                  "[server 1] server 1 of 2 2 x 2, rank 0 of 1, local 0 of 1, host 0 127.0.0.1",
                  "[worker 0.0] worker 0 of 2 2 x 2, rank 0 of 2, local 0 of 2, host 0 127.0.0.1",
                  "[worker 0.1] worker 0 of 2 2 x 2, rank 1 of 2, local 1 of 2, host 0 127.0.0.1",
                  "[worker 1.0] worker 1 of 2 2 x 2, rank 0 of 2, local 0 of 2, host 0 127.0.0.1",
                  "[worker 1.1] worker 1 of 2 2 x 2, rank 1 of 2, local 1 of 2, host 0 127.0.0.1"));
}

TEST_F(Roles, OfOneJobShareItsSecretAndEachIsAWorldOfItsOwn) {
  const auto result =
      run({"-n", "2"},
          "echo $TRIREME_PS_JOB $TRIREME_PS_MANAGER $TRIREME_SECRET "
          "$OMP_NUM_THREADS; echo world $MASTER_PORT $TORCHELASTIC_RUN_ID; "
          "[ $TRIREME_ROLE != manager ] || stat -c 'mode %a' $TRIREME_PS_MANAGER "
          "$TRIREME_PS_MANAGER/secret; [ $TRIREME_ROLE = worker ] || exec sleep 60");
  std::set<std::string> jobs;
  std::map<std::string, int> worlds, ports;
  std::vector<std::string> modes;
  for (const std::string& line : lines_of(result.out)) {
    const std::string text = line.substr(line.find("] ") + 2);
    if (text.starts_with("mode "))
      modes.push_back(text);
    else if (text.starts_with("world "))
      ++worlds[text];
    else
      jobs.insert(text);
  }
  EXPECT_EQ(jobs.size(), 1u) << result.out;
  EXPECT_THAT(modes, ElementsAre("mode 700", "mode 600"));
  std::vector<int> sizes;
  for (const auto& [world, size] : worlds) sizes.push_back(size);
  EXPECT_THAT(sizes, UnorderedElementsAre(1, 1, 1, 2, 2)) << result.out;
}

TEST_F(Roles, AWorkerOfSeveralRanksStartsAgainAsAWhole) {
  const auto result = run({"-n", "2"},
                          "[ $TRIREME_ROLE = worker ] || exec sleep 60; "
                          "echo try $TORCHELASTIC_RESTART_COUNT; "
                          "[ $TRIREME_ROLE_INDEX$TORCHELASTIC_RESTART_COUNT = 10 ] || exit 0; "
                          "[ $RANK = 1 ] && exit 5; exec sleep 60");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("exited with code 5; starting its 2 ranks again (restart 1 of "
                                    "100)"));
  EXPECT_THAT(result.err, HasSubstr("trireme run: rank 1 of worker 1 (pid "));
  EXPECT_THAT(
      lines_of(result.out),
      UnorderedElementsAre("[worker 0.0] try 0", "[worker 0.1] try 0", "[worker 1.0] try 0",
                           "[worker 1.1] try 0", "[worker 1.0] try 1", "[worker 1.1] try 1"));
}

TEST_F(Roles, EndWithTheOneThatFailsForGood) {
  const std::string failing =
      "[ $TRIREME_ROLE = server ] || exec sleep 60; [ $TRIREME_ROLE_INDEX = 1 ] || exec sleep 60; "
      "echo the reason >&2; exit ";
  const auto once = run({"--max-restarts", "1"}, failing + "7");
  EXPECT_EQ(once.code, 7);
  EXPECT_THAT(once.err, HasSubstr("starting it again (restart 1 of 1)"));
  EXPECT_THAT(once.err, HasSubstr("exited with code 7; its last lines:\n  | the reason"));

  const auto quick = run({}, failing + "7");
  EXPECT_EQ(quick.code, 7);
  EXPECT_THAT(quick.err, HasSubstr("(restart 2 of 100)"));
  EXPECT_THAT(quick.err, Not(HasSubstr("(restart 3 of 100)")));
  EXPECT_THAT(quick.err, HasSubstr("it failed 3 times in a row within 2 s of its start"));

  const auto usage = run({}, failing + "2");
  EXPECT_EQ(usage.code, 2);
  EXPECT_THAT(usage.err, Not(HasSubstr("again")));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(Roles, MayEndWith0BeforeTheWorkersDo) {
  const auto result = run({},
                          "[ $TRIREME_ROLE = worker ] || { echo over; exit 0; }; sleep 0.3; "
                          "echo done");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(lines_of(result.out),
              UnorderedElementsAre("[manager] over", "[server 0] over", "[server 1] over",
                                   "[worker 0] done", "[worker 1] done"));
}

TEST_F(Roles, AreRefusedWhereTheyCannotBe) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--servers", "2"}, "--servers 2 needs --workers"},
      {{"--workers", "2"}, "--workers 2 needs --servers"},
      {{"--manager", "x"}, "--manager x needs --servers"},
      {{"--servers", "0", "--workers", "2"}, "--servers 0"},
      {{"--servers", "2", "--workers", "0"}, "--workers 0"},
      {{"--servers", "many", "--workers", "2"}, "many"},
      {{"--servers", "1", "--workers", "1", "--max-restarts", "-1"}, "negative"},
      {{"--servers", "1", "--workers", "1", "--master-port", "1234"}, "a world of its own"},
      {{"--servers", "1", "--workers", "1", "--nnodes", "2", "--node-rank", "0", "--master-addr",
        "a"},
       "on one host only"}};
  for (const auto& [options, named] : cases) {
    std::vector<std::string> all = {kTrireme, "run"};
    all.insert(all.end(), options.begin(), options.end());
    all.push_back("true");
    const auto result = run_command(all, how());
    EXPECT_EQ(result.code, 2) << named;
    EXPECT_THAT(result.err, HasSubstr(named));
    EXPECT_EQ(lines_of(result.err).size(), 1u) << result.err;
  }
}

TEST_F(Roles, EndEarlyInOrderWhenInterrupted) {
  for (const auto& [signal, code] : {std::pair{SIGINT, 0}, std::pair{SIGTERM, 128 + SIGTERM}}) {
    Command job(words({}, nodes(100'000)), how());
    ASSERT_TRUE(job.wait_for("[worker 0] step "));
    ASSERT_TRUE(job.wait_for("[worker 1] step "));
    job.signal(signal);
    const auto result = job.finish();
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_LT(result.wall, 8s);
    EXPECT_THAT(result.out, AllOf(HasSubstr("[worker 0] lives lost: 0"),
                                  HasSubstr("[worker 1] lives lost: 0")));
    EXPECT_THAT(result.err, Not(HasSubstr("again")));
  }
}

TEST_F(Roles, OnlyTheManagerHearsTheFirstSignalAndNobodyOutlivesTheSecond) {
  Command job(words({}, script("trap 'echo heard' TERM INT; echo ready; "
                               "while :; do sleep 0.05; done")),
              how());
  for (const char* name : {"manager", "server 0", "server 1", "worker 0", "worker 1"})
    ASSERT_TRUE(job.wait_for(fmt::format("[{}] ready", name)));
  job.signal(SIGINT);
  ASSERT_TRUE(job.wait_for("[manager] heard"));
  job.signal(SIGINT);
  const auto result = job.finish();
  EXPECT_EQ(result.code, 128 + SIGINT);
  EXPECT_LT(result.wall, 5s);
  EXPECT_THAT(result.out,
              AllOf(Not(HasSubstr("[server 0] heard")), Not(HasSubstr("[worker 0] heard"))));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(Roles, LeaveNothingWhenTheLauncherIsKilled) {
  Command job(words({}, nodes(100'000)), how());
  ASSERT_TRUE(job.wait_for("[worker 0] step "));
  EXPECT_GE(processes().size(), 7u);  // launcher, keeper, roles
  EXPECT_EQ(files().size(), 1u);
  job.signal(SIGKILL);
  EXPECT_EQ(job.finish().code, 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return processes().empty() && files().empty(); }));
}

TEST_F(Roles, WriteLogsOfTheirOwn) {
  const auto result =
      run({"--log-dir", scratch_ / "logs", "--rdzv-id", "r", "--redirects", "1", "-n", "2"},
          "echo out; echo err >&2; [ $TRIREME_ROLE = worker ] || exec sleep 60");
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* name : {"manager", "server-1", "worker-0.0", "worker-1.1"})
    EXPECT_EQ(bytes_of(scratch_ / ("logs/r/attempt_0/" + std::string(name) + "/stdout.log")),
              "out\n")
        << name;
  EXPECT_EQ(result.out, "");
}

TEST_F(Roles, AJobSaysHowItIs) {
  const std::string folder = scratch_ / "run/ps";
  Command job(words({"--manager", folder}, nodes(100'000)), how());
  ASSERT_TRUE(job.wait_for("[worker 0] step "));
  ASSERT_TRUE(job.wait_for("[worker 1] step "));
  for (const std::string& named : {folder, scratch_ / "run"}) {
    const auto screen = status(named);
    EXPECT_EQ(screen.code, 0) << screen.err;
    EXPECT_LT(screen.wall, 1s);
    EXPECT_THAT(screen.out, HasSubstr("job real: "));
    EXPECT_THAT(screen.out, HasSubstr(" of 50000 steps done"));
    for (const char* row : {"\nserver 0 ", "\nserver 1 ", "\nworker 0 ", "\nworker 1 "})
      EXPECT_THAT(screen.out, HasSubstr(row));
    EXPECT_TRUE(std::regex_search(screen.out, std::regex("\n0-\\d +epoch 1: server \\d, \\d\n")))
        << screen.out;
  }
  const auto json = core::parse_json(status(folder, {"--json"}).out, "status");
  EXPECT_EQ(json.at("nodes").size(), 4u);
  EXPECT_EQ(json.at("ranges").size(), 8u);
  job.signal(SIGINT);
  EXPECT_EQ(job.finish().code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder)) << "it goes with the job";
  const auto after = status(scratch_ / "run");
  EXPECT_EQ(after.code, 1);
  EXPECT_EQ(lines_of(after.err).size(), 1u) << after.err;
  EXPECT_THAT(after.err, HasSubstr("no manager is in " + scratch_ / "run"));
}

/// Which servers have ranges, if no range is on its way to one.
std::set<int64_t> holders_in(const core::Json& status) {
  std::set<int64_t> holders;
  for (const core::Json& range : status.at("ranges")) {
    if (range.contains("joins")) return {};
    for (const core::Json& server : range.at("chain")) holders.insert(server.get<int64_t>());
  }
  return holders;
}

/// Two servers come; one goes again by Ctrl-C, and one of the launcher's by SIGTERM, as the status
/// says whom to send it to. The one that stays ends with the job.
TEST_F(Roles, ServersJoinAndLeaveWhileTheJobGoesOn) {
  constexpr int kBatches = 3000;
  const std::string folder = scratch_ / "ps";
  Command job(words({"--manager", folder}, nodes(kBatches)), how());
  ASSERT_TRUE(job.wait_for("[worker 0] step "));
  const auto now = [&] {
    return core::parse_json(status(folder, {"--json"}).out, "what ps status says");
  };
  const auto held_by = [&](const std::set<int64_t>& servers) {
    return eventually([&] { return holders_in(now()) == servers; }, 20s);
  };
  const auto join = [&] {
    std::vector<std::string> words = {kTrireme, "ps", "join", folder};
    for (const std::string& word : nodes(kBatches)) words.push_back(word);
    return std::make_unique<Command>(words, how());
  };
  const auto stays = join();
  ASSERT_TRUE(stays->wait_for("this is server 2 of job real now"));
  ASSERT_TRUE(held_by({0, 1, 2})) << now();
  const auto goes = join();
  ASSERT_TRUE(goes->wait_for("this is server 3 of job real now"));
  ASSERT_TRUE(held_by({0, 1, 2, 3})) << now();
  goes->signal(SIGINT);
  EXPECT_EQ(goes->finish().code, 0);
  ASSERT_TRUE(held_by({0, 1, 2})) << now();
  pid_t pid = 0;
  for (const core::Json& node : now().at("nodes"))
    if (node.at("name") == "server 0") pid = node.at("figures").at("pid").get<pid_t>();
  EXPECT_EQ(pid, process_of("server", "0"));
  ::kill(pid, SIGTERM);
  ASSERT_TRUE(held_by({1, 2})) << now();
  const auto result = job.finish();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("again")));
  expect_plain_weights(result.out, kBatches);
  EXPECT_EQ(stays->finish().code, 0);
}

TEST_F(Roles, JoiningIsRefusedWhereThereIsNothingToJoin) {
  const auto join = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {kTrireme, "ps", "join"});
    return run_command(words, how());
  };
  EXPECT_EQ(join({}).code, 2);
  EXPECT_THAT(join({scratch_ / "no", "true"}).err, HasSubstr("there is no folder"));
  EXPECT_THAT(join({scratch_.path(), "true"}).err, HasSubstr("no manager is in "));
  Command job(words({"--manager", scratch_ / "ps"}, nodes(100'000)), how());
  ASSERT_TRUE(job.wait_for("[worker 0] step "));
  const auto no_program = join({scratch_ / "ps"});
  EXPECT_EQ(no_program.code, 2);
  EXPECT_THAT(no_program.err, HasSubstr("is not the folder of a training run: name the program"));
  // Another job than the one that runs, by its own arguments.
  const auto other = join({scratch_ / "ps", kBin + "ps_node", "1", "77"});
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr("has another job 'real' than the manager"));
  job.signal(SIGINT);
  EXPECT_EQ(job.finish().code, 0);
}

/// The manager is there and says nothing; then it is another one's; then it is dead, and the
/// launcher, too.
TEST_F(Roles, StatusSaysWhyNobodyAnswers) {
  const std::string folder = scratch_ / "ps", beside = scratch_ / "kept";
  Command job(words({"--manager", folder}, nodes(100'000)), how());
  ASSERT_TRUE(job.wait_for("[worker 0] step "));
  const pid_t manager = process_of("manager", "0");
  ASSERT_GT(manager, 0);
  ::kill(manager, SIGSTOP);
  const auto stopped = status(folder);
  ::kill(manager, SIGCONT);
  EXPECT_EQ(stopped.code, 1);
  EXPECT_LT(stopped.wall, 4s);
  EXPECT_THAT(stopped.err, HasSubstr("does not answer: it is stopped (SIGSTOP, Ctrl-Z)"));
  std::filesystem::copy(folder, beside);
  std::ofstream(beside + "/secret") << std::string(64, '0');
  EXPECT_THAT(status(beside).err, HasSubstr("the secret or the job id is not the one of its job"));
  std::filesystem::copy(folder + "/secret", beside,
                        std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(status(beside).code, 0);
  job.signal(SIGKILL);
  job.finish();
  EXPECT_THAT(status(beside).err, HasSubstr("nobody listens at its address: the job has ended"));
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(folder); })) << "files stay behind";
}

/// What others keep in the folder that they have named is not the job's to remove.
TEST_F(Roles, TakeOnlyTheirOwnFilesAway) {
  const std::string folder = scratch_ / "mine";
  std::filesystem::create_directory(folder);
  std::ofstream(folder + "/notes") << "precious";
  EXPECT_EQ(run({"--manager", folder}, "[ $TRIREME_ROLE = worker ] || exec sleep 60").code, 0);
  EXPECT_EQ(bytes_of(folder + "/notes"), "precious");
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    left.push_back(entry.path().filename());
  EXPECT_THAT(left, ElementsAre("notes"));
}

TEST_F(Roles, StatusSaysWhereThereIsNoJob) {
  EXPECT_THAT(status(scratch_.path()).err, HasSubstr("no manager is in " + scratch_.path()));
  EXPECT_THAT(status(scratch_ / "no").err, HasSubstr("there is no folder"));
  EXPECT_EQ(status(scratch_ / "no").code, 1);
  const auto etcd = status("etcd://127.0.0.1:1");
  EXPECT_EQ(etcd.code, 2);
  EXPECT_THAT(etcd.err, HasSubstr("--job"));
  EXPECT_THAT(status("etcd://127.0.0.1:1", {"--job", "a"}).err, HasSubstr("TRIREME_SECRET_FILE"));
}

TEST_F(Roles, ASecondJobDoesNotTakeTheFolderOfTheFirst) {
  const std::string folder = scratch_ / "ps";
  Command job(words({"--manager", folder}, nodes(100'000)), how());
  ASSERT_TRUE(job.wait_for("[worker 0] step "));
  const auto second = run_command(words({"--manager", folder}, nodes(20)), how());
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err, HasSubstr("another job runs in '" + folder + "'"));
  EXPECT_EQ(status(folder).code, 0) << "the first has its secret still";
  job.signal(SIGINT);
  EXPECT_EQ(job.finish().code, 0);
  // The next one begins anew where the first has ended.
  const auto third = run_command(words({"--manager", folder}, nodes(60)), how());
  EXPECT_EQ(third.code, 0) << third.err;
  expect_plain_weights(third.out, 60);
}

}  // namespace
}  // namespace trireme::test
