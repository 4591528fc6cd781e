// The processes of a small job, for tests that kill them.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/command.h"
#include "tests/ps/ps_job.h"

namespace trireme::test {

/// The processes of a job. Each can be killed, and is then started anew.
class PsProcesses {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;
  PsProcesses(std::string place, const PsJob& job, const Environment& of_manager = {})
      : place_(std::move(place)), job_(job) {
    start("manager", 0, of_manager);
    for (uint32_t i = 0; i < job.servers; ++i) start("server", i);
    if (job.counts) return;  // its workers are threads of the test
    for (uint32_t i = 0; i < job.workers; ++i) start("worker", i);
  }
  ~PsProcesses() {
    for (auto& [name, process] : all_) {
      if (name.starts_with("worker")) continue;
      ::kill(process->pid(), SIGKILL);
      process->finish();
    }
  }

  void kill_and_restart(const std::string& role, uint32_t index) {
    auto& process = all_.at(fmt::format("{} {}", role, index));
    ::kill(process->pid(), SIGKILL);
    process->finish();
    start(role, index);
  }

  /// Stops a process for so long, and lets it go on.
  void suspend(const std::string& role, uint32_t index, std::chrono::milliseconds time) {
    const Command& process = *all_.at(fmt::format("{} {}", role, index));
    process.signal(SIGSTOP);
    std::this_thread::sleep_for(time);
    process.signal(SIGCONT);
  }
  /// Waits for the end of one that ends itself, and starts it anew.
  CommandResult finish_and_restart(const std::string& role, uint32_t index) {
    const CommandResult ended = all_.at(fmt::format("{} {}", role, index))->finish();
    start(role, index);
    return ended;
  }

  Command& worker(uint32_t index) { return *all_.at(fmt::format("worker {}", index)); }

 private:
  void start(const std::string& role, uint32_t index, const Environment& environment = {}) {
    std::vector<std::string> arguments = {TRIREME_BINARY_DIR "/bin/ps_node",
                                          role,
                                          std::to_string(index),
                                          place_,
                                          std::to_string(job_.servers),
                                          std::to_string(job_.workers),
                                          std::to_string(job_.copies),
                                          std::to_string(job_.batches)};
    if (job_.counts) arguments.push_back("counts");
    all_[fmt::format("{} {}", role, index)] = std::make_unique<Command>(
        arguments,
        CommandOptions{.environment = environment, .deadline = std::chrono::seconds(600)});
  }

  std::string place_;  ///< of the manager: a folder, or etcd://...
  PsJob job_;
  std::map<std::string, std::unique_ptr<Command>> all_;
};

inline std::vector<double> weights_in(const std::string& out) {
  std::vector<double> weights;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("weight ")) weights.push_back(std::stod(line.substr(7)));
  return weights;
}

inline void expect_plain_weights(PsProcesses& processes, const PsJob& job) {
  const auto wanted = plain_loop(ps_job(job));
  for (uint32_t i = 0; i < job.workers; ++i) {
    const auto done = processes.worker(i).finish();
    EXPECT_EQ(done.code, 0) << done.err;
    const auto got = weights_in(done.out);
    ASSERT_EQ(got.size(), wanted.size()) << done.out << done.err;
    for (std::size_t k = 0; k < got.size(); ++k) EXPECT_NEAR(got[k], wanted[k], 1e-12);
  }
}

}  // namespace trireme::test
