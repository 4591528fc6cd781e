// The processes of a job that a user's program makes, started as a launcher does it.
#pragma once

#include <fmt/format.h>
#include <signal.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/command.h"
#include "support/scratch.h"

namespace trireme::test {

/// The roles of one job. The name of the job is that which the program gives it.
class JoinedProcesses {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;
  struct Job {
    std::vector<std::string> program;
    int servers = 2, workers = 2;
    std::string name = "joined";
    Environment environment = {};  ///< of all processes
  };
  JoinedProcesses(const Scratch& folder, Job job) : folder_(folder), job_(std::move(job)) {
    start("manager", 0);
    for (int i = 0; i < job_.servers; ++i) start("server", i);
  }
  void start_workers() {
    for (int i = 0; i < job_.workers; ++i) start("worker", i);
  }

  void start(const std::string& role, int index, const Environment& more = {}) {
    Environment environment = {{"TRIREME_ROLE", role},
                               {"TRIREME_ROLE_INDEX", std::to_string(index)},
                               {"TRIREME_PS_SERVERS", std::to_string(job_.servers)},
                               {"TRIREME_PS_WORKERS", std::to_string(job_.workers)},
                               {"TRIREME_PS_RANKS", "1"},
                               {"TRIREME_PS_JOB", job_.name},
                               {"TRIREME_PS_MANAGER", folder_ / "manager"},
                               {"TRIREME_SECRET", "a secret of tests only"}};
    for (const Environment* added :
         std::initializer_list<const Environment*>{&job_.environment, &more})
      environment.insert(environment.end(), added->begin(), added->end());
    all_[fmt::format("{} {}", role, index)] = std::make_unique<Command>(
        job_.program,
        CommandOptions{.environment = environment, .deadline = std::chrono::seconds(60)});
  }
  Command& node(const std::string& name) { return *all_.at(name); }

  void kill(const std::string& role, int index) {
    Command& process = node(fmt::format("{} {}", role, index));
    process.signal(SIGKILL);
    process.finish();
    start(role, index);
  }

 private:
  const Scratch& folder_;
  Job job_;
  std::map<std::string, std::unique_ptr<Command>> all_;
};

}  // namespace trireme::test
