#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/ps_status.h"
#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/format/file.h"
#include "trireme/net/secret.h"
#include "trireme/ps/watch.h"

namespace trireme::cli {

namespace {

namespace fs = std::filesystem;

/// A manager answers within milliseconds, and one that is starting again within a second or two.
constexpr std::chrono::milliseconds kPatience{2500};

constexpr const char* kPsPurpose =
    "Shows how a job with servers and workers is: steps, servers, workers and who holds which "
    "range.\n"
    "It asks the manager, as somebody who takes no part; the job does not notice.";

constexpr const char* kPsExamples =
    "JOB is the folder of the manager (--manager of 'trireme run'), a run's folder that has it as "
    "ps/,\n"
    "or etcd://HOST:PORT, with TRIREME_SECRET or TRIREME_SECRET_FILE as the job has them.\n\n"
    "  trireme ps status /tmp/trireme-k3x0a9f2\n"
    "  trireme ps status runs/gpt-small --json\n"
    "  trireme ps status etcd://10.0.0.1:2379 --job k3x0a9f2\n\n"
    "lag: steps that a worker is behind the furthest one. behind: updates that a server has and "
    "its\n"
    "copies do not have yet. Exit codes: 0 shown; 1 no manager answers.\n";

/// Where a job is, by what the user typed, and what proves that he may ask.
struct FoundJob {
  std::unique_ptr<ps::ManagerPlace> place;
  std::string name;
  net::Secret secret;
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
  return {ps::make_manager_place(where, name), name, net::secret_of_job(name)};
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
  auto secret = format::is_file(beside)
                    ? net::Secret::from_text(format::read_file(beside, kMostSecret))
                    : net::secret_of_job(name);
  return {std::move(place), name, std::move(secret)};
}

}  // namespace

int ps_command(const std::vector<std::string>& args) {
  bool json = false;
  std::string name;
  Arguments arguments("trireme ps", kPsPurpose);
  arguments.usage("status JOB [OPTIONS]");
  arguments.footer(kPsExamples);
  arguments.actions({"status"});
  arguments.flag("--json", json, "print JSON, as the manager gives it");
  arguments.value("--job", name, "of a job in etcd: its name");
  const auto words = arguments.parse_anywhere(args);
  if (words.size() != 2 || words[0] != "status")
    throw ConfigError("use 'trireme ps status JOB' ('trireme ps --help')");
  const std::string& where = words[1];
  const bool is_folder = where.find("://") == where.npos;
  if (is_folder && !name.empty())
    throw ConfigError("--job is for jobs in etcd: a folder has one job");

  const FoundJob job = is_folder ? in_folder(where) : in_etcd(where, name);
  const auto answer =
      ps::ask_status(*job.place, job.name, job.secret, net::Clock::now() + kPatience);
  if (!answer.json) throw Error(fmt::format("the job in {}: {}", where, answer.why_not));
  fmt::print("{}", json ? *answer.json + "\n" : status_screen(*answer.json));
  return 0;
}

}  // namespace trireme::cli
