#include "trireme/launch/run.h"

#include <unistd.h>

#include <optional>
#include <vector>

#include "trireme/core/env.h"
#include "trireme/core/terminal.h"
#include "trireme/launch/job_folder.h"
#include "trireme/launch/supervisor.h"
#include "trireme/net/file_limit.h"
#include "trireme/net/secret.h"

namespace trireme::launch {

namespace {

constexpr int kMasterPort = 29500;  // torchrun's

/// Makes a secret for ranks of one host. Returns none if it was given, or if there are several
/// hosts: their launchers could not agree on one, so the ranks derive it from the user's key.
std::string make_secret(const RunOptions& options) {
  const bool given = core::env("TRIREME_SECRET") || core::env("TRIREME_SECRET_FILE");
  return given || options.num_hosts > 1 ? "" : net::Secret::random().to_text();
}

Job make_job(const RunOptions& options) {
  const bool one_host = options.num_hosts == 1;
  Job job{.role = std::nullopt,
          .num_ranks = options.num_ranks,
          .num_hosts = options.num_hosts,
          .host = options.host,
          .master_addr = options.master_addr.empty() ? "127.0.0.1" : options.master_addr,
          .master_port = options.master_port,
          .run_id = options.run_id,
          .secret = make_secret(options),
          .attempt = 0,
          .max_restarts = options.restarts(),
          .colour = options.log_dir.empty() && core::shows_colour(STDERR_FILENO)};
  if (job.run_id.empty()) job.run_id = one_host ? random_run_id() : "trireme";
  if (job.master_port == 0 && !one_host) job.master_port = kMasterPort;
  return job;
}

/// The units of a job with roles. The manager comes first: the others look for it.
std::vector<Job> units_of(const Job& job, const RunOptions& options, const JobFolder& folder) {
  using Kind = UnitRole::Kind;
  std::vector<Job> units;
  const auto add = [&](Kind kind, int count, int num_ranks) {
    for (int index = 0; index < count; ++index) {
      Job& unit = units.emplace_back(job);
      unit.num_ranks = num_ranks;
      unit.role = {.kind = kind,
                   .index = index,
                   .servers = options.roles->servers,
                   .workers = options.roles->workers,
                   .worker_ranks = options.num_ranks,
                   .manager = folder.where()};
    }
  };
  add(Kind::Manager, 1, 1);
  add(Kind::Server, options.roles->servers, 1);
  add(Kind::Worker, options.roles->workers, options.num_ranks);
  return units;
}

int run_ranks(const RunOptions& options, Signals& signals, Console& console) {
  const Keeper keeper;
  return Supervisor(options, {make_job(options)}, keeper, signals, console).run();
}

int run_roles(const RunOptions& options, Signals& signals, Console& console) {
  JobFolder folder(options.roles->manager);
  const Keeper keeper(folder.remover());  // before the folder is there: it never stays behind
  const Job job = make_job(options);
  folder.make(job.secret);
  if (folder.is_temporary() && options.display == Display::Prefixed)
    console.err().say(fmt::format("{}: 'trireme ps status {}' shows how the job is",
                                  options.speaker, folder.where()));
  return Supervisor(options, units_of(job, options, folder), keeper, signals, console).run();
}

}  // namespace

int run(const RunOptions& options) {
  check_options(options);
  open_standard_files();
  Signals signals;
  Console console;
  int code = 1;
  try {
    // Descriptors per rank: its process, its two outputs, and their log files.
    const int of_rank = options.log_dir.empty() ? 3 : 5;
    const int count = options.num_processes();
    net::raise_file_limit(5 * count + 64, of_rank * count + 32,
                          fmt::format("a launcher of {} ranks", count));
    code =
        options.roles ? run_roles(options, signals, console) : run_ranks(options, signals, console);
  } catch (const StartError& error) {
    console.err().say(fmt::format("{}: {}", options.speaker, error.what()));
    code = error.exit_code();
  } catch (const Error& error) {
    console.err().say(fmt::format("{}: {}", options.speaker, error.what()));
  }
  console.drain(signals);
  return code;
}

}  // namespace trireme::launch
