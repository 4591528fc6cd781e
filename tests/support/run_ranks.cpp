#include "support/run_ranks.h"

#include <fcntl.h>
#include <ftw.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace trireme::test {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kPollEvery = std::chrono::milliseconds(5);
constexpr auto kGrace = std::chrono::seconds(2);  // for the others, once one rank has failed

struct Child {
  pid_t pid = -1;
  std::optional<int> status;  // as from waitpid; empty while it runs
};

int calls = 0;  // of run_ranks, so far, in the current test

class RestartCount : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { calls = 0; }
};
[[maybe_unused]] const bool kListening = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new RestartCount);
  return true;
}();

std::string current_test() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  return std::string(info->test_suite_name()) + "." + info->name();
}

fs::path log_of(const fs::path& scratch, int rank) {
  return scratch / ("rank" + std::to_string(rank) + ".log");
}

fs::path done_of(const fs::path& scratch, int rank) {
  return scratch / ("rank" + std::to_string(rank) + ".done");
}

std::string tail(const fs::path& file, std::size_t bytes = 4000) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  const std::string all = text.str();
  return all.size() <= bytes ? all : "...\n" + all.substr(all.size() - bytes);
}

/// Not std::filesystem::remove_all: a libtorch with CUDA exports a broken one of its own.
void remove_folder(const std::string& folder) {
  ::nftw(
      folder.c_str(),
      [](const char* path, const struct stat*, int, FTW*) { return std::remove(path); }, 16,
      FTW_DEPTH | FTW_PHYS);
}

/// In a rank: run the body, leave the marker that proves it ran, and stop here.
[[noreturn]] void be_rank(const Rank& self, const std::function<void(const Rank&)>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    body(self);
  } catch (const std::exception& e) {
    ADD_FAILURE() << "rank " << self.rank << " threw: " << e.what();
  }
  std::ofstream(done_of(self.scratch, self.rank)) << "done\n";
  std::exit(::testing::Test::HasFailure() ? EXIT_FAILURE : EXIT_SUCCESS);
}

pid_t spawn_rank(const Rank& self, int call) {
  // A shard setting inherited from the parent could filter the test out.
  std::vector<std::string> env;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::string(*entry).rfind("GTEST_", 0) != 0) env.emplace_back(*entry);
  }
  env.push_back("TRIREME_TEST_RANK=" + std::to_string(self.rank));
  env.push_back("TRIREME_TEST_CALL=" + std::to_string(call));
  env.push_back("TRIREME_TEST_SCRATCH=" + self.scratch.string());
  std::vector<std::string> args = {"rank" + std::to_string(self.rank),
                                   "--gtest_filter=" + current_test(), "--gtest_color=no"};
  auto pointers = [](std::vector<std::string>& strings) {
    std::vector<char*> out;
    for (auto& s : strings) out.push_back(s.data());
    out.push_back(nullptr);
    return out;
  };
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log_of(self.scratch, self.rank).c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, "/proc/self/exe", &files, nullptr, pointers(args).data(),
                                pointers(env).data());
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) throw std::system_error(error, std::generic_category(), "posix_spawn");
  return pid;
}

/// Waits for every child; once one has failed or time is up, kills the rest.
void reap(std::vector<Child>& children, const RunOptions& options) {
  auto deadline = Clock::now() + options.deadline;
  for (;;) {
    bool running = false, others_running = false;
    for (int rank = 0; Child & child : children) {
      int status = 0;
      if (!child.status && ::waitpid(child.pid, &status, WNOHANG) == child.pid) {
        child.status = status;
        const bool expected = options.dies.contains(rank) || options.stopped.contains(rank);
        if (status != 0 && !expected) deadline = std::min(deadline, Clock::now() + kGrace);
      }
      running |= !child.status.has_value();
      others_running |= !child.status.has_value() && !options.stopped.contains(rank);
      ++rank;
    }
    if (!running) return;
    if (!others_running) {
      // Only ranks that stopped themselves are left: they have played their part.
      for (int rank : options.stopped) {
        if (!children[static_cast<std::size_t>(rank)].status)
          ::kill(children[static_cast<std::size_t>(rank)].pid, SIGKILL);
      }
    }
    if (Clock::now() >= deadline) break;
    std::this_thread::sleep_for(kPollEvery);
  }
  for (Child& child : children) {
    if (child.status) continue;
    ::kill(child.pid, SIGKILL);
    int status = 0;
    ::waitpid(child.pid, &status, 0);  // status stays empty: "did not finish"
  }
}

/// What is wrong with how a rank ended; empty if nothing is.
std::string verdict(const Child& child, bool marked, bool should_die) {
  if (!child.status) return "did not finish and was killed";
  if (should_die) return WIFSIGNALED(*child.status) ? "" : "was expected to die and did not";
  if (WIFSIGNALED(*child.status)) return std::string("died: ") + strsignal(WTERMSIG(*child.status));
  if (WEXITSTATUS(*child.status) != 0) return "failed";
  return marked ? "" : "exited without running the body";
}

}  // namespace

void run_ranks(int size, const std::function<void(const Rank&)>& body, RunOptions options) {
  const int call = calls++;

  if (const char* rank = std::getenv("TRIREME_TEST_RANK")) {
    if (call != std::stoi(std::getenv("TRIREME_TEST_CALL"))) return;  // an earlier one
    be_rank({std::stoi(rank), size, std::getenv("TRIREME_TEST_SCRATCH")}, body);
  }

  std::string scratch = (fs::temp_directory_path() / "trireme-XXXXXX").string();
  if (::mkdtemp(scratch.data()) == nullptr)
    throw std::system_error(errno, std::generic_category(), scratch);
  std::vector<Child> children;
  for (int rank = 0; rank < size; ++rank)
    children.push_back({spawn_rank({rank, size, scratch}, call), {}});
  reap(children, options);

  for (int rank = 0; rank < size; ++rank) {
    const bool marked = fs::exists(done_of(scratch, rank));
    const std::string bad = verdict(children[static_cast<std::size_t>(rank)], marked,
                                    options.dies.contains(rank) || options.stopped.contains(rank));
    if (bad.empty()) continue;
    ADD_FAILURE() << "rank " << rank << " of " << size << " " << bad << "\n"
                  << tail(log_of(scratch, rank));
  }
  remove_folder(scratch);
}

}  // namespace trireme::test
