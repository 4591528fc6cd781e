#include "trireme/launch/run.h"

#include <unistd.h>

#include <optional>

#include "trireme/core/env.h"
#include "trireme/core/terminal.h"
#include "trireme/launch/attempt.h"
#include "trireme/launch/port.h"
#include "trireme/launch/report.h"
#include "trireme/net/file_limit.h"
#include "trireme/net/secret.h"

namespace trireme::launch {

namespace {

constexpr int kMasterPort = 29500;  // torchrun's
constexpr int kUsage = 2;           // the exit code for wrong arguments

/// Makes a secret for ranks of one host. Returns none if it was given, or if there are several
/// hosts: their launchers could not agree on one, so the ranks derive it from the user's key.
std::string make_secret(const RunOptions& options) {
  const bool given = core::env("TRIREME_SECRET") || core::env("TRIREME_SECRET_FILE");
  return given || options.num_hosts > 1 ? "" : net::Secret::random().to_text();
}

Job make_job(const RunOptions& options) {
  const bool one_host = options.num_hosts == 1;
  Job job{.num_ranks = options.num_ranks,
          .num_hosts = options.num_hosts,
          .host = options.host,
          .master_addr = options.master_addr.empty() ? "127.0.0.1" : options.master_addr,
          .master_port = options.master_port,
          .run_id = options.run_id,
          .secret = make_secret(options),
          .attempt = 0,
          .max_restarts = options.max_restarts,
          .colour = options.log_dir.empty() && core::shows_colour(STDERR_FILENO)};
  if (job.run_id.empty()) job.run_id = one_host ? random_run_id() : "trireme";
  if (job.master_port == 0 && !one_host) job.master_port = kMasterPort;
  return job;
}

/// Whether the rank ended because it was told to: by the signal that we received, or by ours after
/// it.
bool obeyed(const Outcome& outcome) {
  const auto [code, signal] = outcome.failure->ending;
  return outcome.interrupted_by != 0 && (signal == outcome.interrupted_by || signal == SIGTERM ||
                                         signal == SIGKILL || code == 128 + outcome.interrupted_by);
}

/// Whether the arguments were wrong, so that a restart cannot help.
bool is_usage(const Failure& failure) {
  return failure.ending.signal == 0 && failure.ending.code == kUsage;
}

/// The exit code of a job that will not be tried again.
int conclude(const Outcome& outcome, const RunOptions& options, Console& console) {
  if (!outcome.failure) return 0;
  if (obeyed(outcome)) return 128 + outcome.interrupted_by;
  const auto& answers = options.answers;
  const bool is_answer =
      outcome.failure->ending.signal == 0 &&
      std::find(answers.begin(), answers.end(), outcome.failure->ending.code) != answers.end();
  if (is_answer) return outcome.failure->ending.exit_code();
  Failure failure = *outcome.failure;
  const bool is_said = is_usage(failure) && failure.was_shown;
  if (is_said) failure.last_lines.clear();  // its own error message is enough
  if (!is_said || options.display == Display::Prefixed)
    console.err().say(report(failure, options.speaker));
  return failure.ending.exit_code();
}

int run_attempts(const RunOptions& options, const Keeper& keeper, Signals& signals,
                 Console& console) {
  Job job = make_job(options);
  const bool pick_port = job.master_port == 0;
  for (;; ++job.attempt) {
    std::optional<ReservedPort> port;
    if (pick_port) job.master_port = port.emplace().number();
    const Outcome outcome = Attempt(options, job, keeper, signals, console).run();
    if (!outcome.failure || outcome.interrupted_by != 0 || is_usage(*outcome.failure) ||
        job.attempt == options.max_restarts)
      return conclude(outcome, options, console);
    console.err().say(fmt::format("{}: {}; starting all {} ranks again (restart {} of {})",
                                  options.speaker, sentence(*outcome.failure), job.num_ranks,
                                  job.attempt + 1, options.max_restarts));
    console.flush();
  }
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
    net::raise_file_limit(5 * options.num_ranks + 64, of_rank * options.num_ranks + 32,
                          fmt::format("a launcher of {} ranks", options.num_ranks));
    const Keeper keeper;
    code = run_attempts(options, keeper, signals, console);
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
