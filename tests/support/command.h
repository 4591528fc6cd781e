#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/net/socket.h"

namespace trireme::test {

/// The folder of the programs, and the one that most tests run.
inline const std::string kBin = TRIREME_BINARY_DIR "/bin/", kTrireme = kBin + "trireme",
                         kTestRank =
                             kBin + "trireme_test_rank";  ///< tests/support/rank_program.cpp

struct CommandOptions {
  std::vector<std::pair<std::string, std::string>> environment{};  ///< added to ours
  std::string input{};                                             ///< its stdin
  std::chrono::milliseconds deadline{30'000};                      ///< then it is killed
};

/// An environment in which no GPU is seen.
inline const std::vector<std::pair<std::string, std::string>> kNoGpus = {
    {"CUDA_VISIBLE_DEVICES", ""}};

struct CommandResult {
  int code = -1;  ///< exit code, or 128 + the signal that killed it
  bool in_time = true;
  std::string out;
  std::string err;
  std::chrono::milliseconds wall{0};
};

/// A command that runs while the test goes on. Killed, if it still runs, when this goes.
class Command {
 public:
  explicit Command(std::vector<std::string> argv, CommandOptions options = {});
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Reads its output until `text` has come on stdout or stderr; false at the deadline or its end.
  bool wait_for(const std::string& text);
  /// Lets nobody read its stdout any more.
  void close_stdout() { out_.reset(); }
  /// Waits for its end.
  CommandResult finish();

 private:
  /// Reads what comes until `done`, both pipes end, or the deadline; whether `done` came first.
  bool pump(const std::function<bool()>& done);

  std::chrono::steady_clock::time_point began_, deadline_;
  pid_t pid_ = -1;
  net::Fd out_, err_;
  CommandResult result_;
};

/// Runs a command to its end.
CommandResult run_command(std::vector<std::string> argv, CommandOptions options = {});

/// Asks again and again, without sleeping long, until it is true or two seconds have passed.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds deadline = std::chrono::milliseconds(2000));

/// The processes that have NAME=value in their environment (zombies have none).
std::vector<pid_t> processes_with(const std::string& name, const std::string& value);

/// A value for such a marker that no other process has.
std::string unique_marker();

}  // namespace trireme::test
