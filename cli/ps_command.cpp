#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/ps_status.h"
#include "cli/rank_program.h"
#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/core/json.h"
#include "trireme/format/file.h"
#include "trireme/net/secret.h"
#include "trireme/ps/watch.h"

namespace trireme::cli {

namespace {

namespace fs = std::filesystem;

/// A manager answers within milliseconds, and one that is starting again within a second or two.
constexpr std::chrono::milliseconds kPatience{2500};

constexpr const char* kPsPurpose =
    "status shows how a job with servers and workers is: steps, servers, workers and who holds "
    "which\nrange. It asks the manager, as somebody who takes no part; the job does not notice. "
    "join "
    "adds a server.";

constexpr const char* kPsExamples =
    "JOB is the folder of the manager (--manager of 'trireme run'), a run's folder that has it as "
    "ps/,\n"
    "or etcd://HOST:PORT, with TRIREME_SECRET or TRIREME_SECRET_FILE as the job has them.\n\n"
    "  trireme ps status /tmp/trireme-k3x0a9f2\n"
    "  trireme ps status runs/gpt-small --json\n"
    "  trireme ps status etcd://10.0.0.1:2379 --job k3x0a9f2\n"
    "  trireme ps join runs/gpt-small                            one more server: 'trireme ps join "
    "--help'\n\n"
    "lag: steps that a worker is behind the furthest one. behind: updates that a server has and "
    "its\n"
    "copies do not have yet. Exit codes: 0 shown; 1 no manager answers.\n";

constexpr const char* kJoinPurpose =
    "Makes this process one more server of a live job. Ranges move to it while the job goes on. On "
    "the\nfirst Ctrl-C or SIGTERM it gives them to the others and ends; it ends with the job, too.";

constexpr const char* kJoinExamples =
    "JOB is as for 'trireme ps status'. PROGRAM is what the job's processes run; of a training run "
    "leave\nit out, and begin in the directory in which the run was begun.\n\n"
    "  trireme ps join runs/gpt-small\n"
    "  trireme ps join /tmp/trireme-k3x0a9f2 ./my_program its arguments\n\n"
    "A server of the launcher leaves alike: kill -TERM PID, where PID is as 'trireme ps status' "
    "shows it.\nNobody starts a server again that has joined; with sync.copies, or copies of "
    "JobConfig, its death\ncosts nothing.\n";

/// Where a job is, by what the user typed, and what proves that he may ask.
struct FoundJob {
  std::unique_ptr<ps::ManagerPlace> place;
  std::string name;
  net::Secret secret;
  std::string where = {};   ///< for its processes
  bool has_secret = false;  ///< the launcher's, which its processes get
};

FoundJob in_etcd(const std::string& where, std::string name) {
  if (name.empty()) name = core::env("TRIREME_PS_JOB").value_or("");
  if (name.empty())
    throw ConfigError(fmt::format("{} may have several jobs: name one with --job NAME", where));
  if (!core::env("TRIREME_SECRET") && !core::env("TRIREME_SECRET_FILE"))
    throw ConfigError(fmt::format(
        "the secret of a job in {} is not known here: set TRIREME_SECRET or TRIREME_SECRET_FILE, "
        "for 'trireme run', too",
        where));
  return {ps::make_manager_place(where, name), name, net::secret_of_job(name), where};
}

/// The launcher leaves the secret beside the address; a job without it has that of its environment.
FoundJob in_folder(std::string folder) {
  constexpr int64_t kMostSecret = 4096;
  if (!fs::is_directory(folder))
    throw Error(
        fmt::format("there is no folder {}: name that of the manager, which goes when its job "
                    "ends, or that of the run",
                    folder));
  if (!format::is_file(folder + "/manager.address") && fs::is_directory(folder + "/ps"))
    folder += "/ps";
  auto place = ps::manager_in_folder(folder);
  if (!place->find())
    throw Error(fmt::format(
        "no manager is in {}: its job has not begun, has ended, or is not one of servers and "
        "workers",
        folder));
  const std::string name = place->job(), beside = folder + "/secret";
  const bool has_secret = format::is_file(beside);
  auto secret = has_secret ? net::Secret::from_text(format::read_file(beside, kMostSecret))
                           : net::secret_of_job(name);
  return {std::move(place), name, std::move(secret), fs::absolute(folder), has_secret};
}

FoundJob find_job(const std::string& where, const std::string& name) {
  const bool is_folder = where.find("://") == where.npos;
  if (is_folder && !name.empty())
    throw ConfigError("--job is for jobs in etcd: a folder has one job");
  return is_folder ? in_folder(where) : in_etcd(where, name);
}

core::Json ask(const FoundJob& job, const std::string& where) {
  const auto answer =
      ps::ask_status(*job.place, job.name, job.secret, net::Clock::now() + kPatience);
  if (!answer.json) throw Error(fmt::format("the job in {}: {}", where, answer.why_not));
  return core::parse_json(*answer.json, "the manager's answer");
}

/// The number of the next server: the first above those of the launcher that nobody has now.
int64_t free_server(const core::Json& status) {
  int64_t index = status.at("servers");
  const auto is_taken = [&](const core::Json& node) {
    return node.at("lives").get<bool>() && node.at("name") == fmt::format("server {}", index);
  };
  while (std::ranges::any_of(status.at("nodes"), is_taken)) ++index;
  return index;
}

/// What a server of a training run is: the ranks' program with the configuration of the run, which
/// says where the run began, too.
std::vector<std::string> training_server(const std::string& where) {
  for (const std::string& folder : {where, where + "/.."})
    if (const std::string config = folder + "/config.toml"; format::is_file(config))
      return {rank_program(), "train", config};
  throw ConfigError(fmt::format(
      "{} is not the folder of a training run: name the program that the job's processes run, too "
      "('trireme ps join --help')",
      where));
}

/// Becomes one more server of a live job.
int join_job(const std::vector<std::string>& args) {
  std::string name;
  Arguments arguments("trireme ps join", kJoinPurpose);
  arguments.usage("[OPTIONS] JOB [PROGRAM [ARG]...]");
  arguments.footer(kJoinExamples);
  arguments.value("--job", name, "of a job in etcd: its name");
  std::vector<std::string> words = arguments.parse_until_program(args);
  if (words.empty()) throw ConfigError("no job was named ('trireme ps join --help' shows how)");
  const std::string where = words[0];
  words.erase(words.begin());
  const FoundJob job = find_job(where, name);
  const std::vector<std::string> program = words.empty() ? training_server(where) : words;
  const core::Json status = ask(job, where);
  const auto set = [](const char* variable, const std::string& value) {
    ::setenv(variable, value.c_str(), 1);
  };
  const auto number = [&](const char* key) {
    return std::to_string(status.at(key).get<int64_t>());
  };
  const int64_t index = free_server(status);
  set("TRIREME_ROLE", "server");
  set("TRIREME_ROLE_INDEX", std::to_string(index));
  set("TRIREME_PS_SERVERS", number("servers"));
  set("TRIREME_PS_WORKERS", number("workers"));
  set("TRIREME_PS_RANKS", number("worker_ranks"));
  set("TRIREME_PS_JOB", job.name);
  set("TRIREME_PS_MANAGER", job.where);
  if (job.has_secret) set("TRIREME_SECRET", job.secret.to_text());
  fmt::print(stderr,
             "trireme ps join: this is server {} of job {} now; Ctrl-C gives its ranges back\n",
             index, job.name);
  std::vector<char*> argv;
  for (const std::string& word : program) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  throw Error(fmt::format("cannot start '{}': {}", program[0], core::errno_text(errno)));
}

}  // namespace

int ps_command(const std::vector<std::string>& args) {
  if (!args.empty() && args[0] == "join") return join_job({args.begin() + 1, args.end()});
  bool json = false;
  std::string name;
  Arguments arguments("trireme ps", kPsPurpose);
  arguments.usage("status JOB [OPTIONS] | join JOB [PROGRAM [ARG]...]");
  arguments.footer(kPsExamples);
  arguments.actions({"status", "join"});
  arguments.flag("--json", json, "print JSON, as the manager gives it");
  arguments.value("--job", name, "of a job in etcd: its name");
  const auto words = arguments.parse_anywhere(args);
  if (words.size() != 2 || words[0] != "status")
    throw ConfigError("use 'trireme ps status JOB' or 'trireme ps join JOB' ('trireme ps --help')");
  const std::string answer = ask(find_job(words[1], name), words[1]).dump();
  fmt::print("{}", json ? answer + "\n" : status_screen(answer));
  return 0;
}

}  // namespace trireme::cli
