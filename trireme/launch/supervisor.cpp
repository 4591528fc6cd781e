#include "trireme/launch/supervisor.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "trireme/launch/report.h"

namespace trireme::launch {

using namespace std::chrono_literals;

namespace {

constexpr int kUsage = 2;  ///< the exit code for wrong arguments
/// That of a manager which ended its job early, because it was told to.
constexpr int kStoppedEarly = 128 + SIGTERM;
/// A role that ends so soon, so often, will not get further the next time.
constexpr auto kQuick = 2s;
constexpr int kQuickFailures = 3;

/// How many milliseconds poll() may sleep; -1: for ever. Rounded up, so that it does not wake too
/// early.
int poll_timeout(std::optional<net::Deadline> due) {
  if (!due) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*due - net::Clock::now());
  return static_cast<int>(std::max<int64_t>(0, left.count()));
}

/// Whether the arguments were wrong, so that a restart cannot help.
bool is_usage(const Failure& failure) {
  return failure.ending.signal == 0 && failure.ending.code == kUsage;
}

bool has_code_of(const Failure& failure, const std::vector<int>& codes) {
  return failure.ending.signal == 0 && std::ranges::find(codes, failure.ending.code) != codes.end();
}

/// Whether the rank ended because it was told to: by the signal that we received, or by ours after
/// it.
bool obeyed(const Failure& failure, int interrupted_by) {
  const auto [code, signal] = failure.ending;
  return interrupted_by != 0 && (signal == interrupted_by || signal == SIGTERM ||
                                 signal == SIGKILL || code == 128 + interrupted_by);
}

}  // namespace

Supervisor::Supervisor(const RunOptions& options, std::vector<Job> units, const Keeper& keeper,
                       Signals& signals, Console& console)
    : options_(options), keeper_(keeper), signals_(signals), console_(console) {
  for (Job& job : units) {
    const bool picks_port = job.master_port == 0;
    units_.push_back({.job = std::move(job), .picks_port = picks_port});
  }
}

int Supervisor::run() {
  for (Unit& unit : units_) start(unit);
  while (std::ranges::any_of(units_, [](const Unit& unit) { return unit.attempt != nullptr; })) {
    wait();
    for (Unit& unit : units_)
      if (unit.attempt && !unit.attempt->running()) on_over(unit);
  }
  return conclude();
}

void Supervisor::start(Unit& unit) {
  if (unit.picks_port) unit.job.master_port = unit.port.emplace().number();
  unit.began = net::Clock::now();
  unit.attempt = std::make_unique<Attempt>(options_, unit.job, keeper_, console_);
  unit.attempt->start(signals_);
}

std::optional<net::Deadline> Supervisor::due() const {
  std::optional<net::Deadline> first = stop_plan_.due();
  for (const Unit& unit : units_) {
    const auto next = unit.attempt ? unit.attempt->due() : std::nullopt;
    if (next && (!first || *next < *first)) first = next;
  }
  return first;
}

void Supervisor::wait() {
  std::vector<pollfd> waited{{signals_.fd(), POLLIN, 0}};
  for (Sink* sink : {&console_.out(), &console_.err()})
    if (sink->pending()) waited.push_back({sink->fd(), POLLOUT, 0});
  std::vector<Output*> outputs;
  for (const Unit& unit : units_) {
    if (!unit.attempt) continue;
    waited.push_back({unit.attempt->deaths_fd(), POLLIN, 0});
    std::ranges::copy(unit.attempt->outputs(), std::back_inserter(outputs));
  }
  const size_t first_output = waited.size();
  for (const Output* output : outputs) waited.push_back({output->poll_fd(), POLLIN, 0});

  if (poll(waited.data(), waited.size(), poll_timeout(due())) < 0 && errno != EINTR)
    throw Error(fmt::format("poll: {}", core::errno_text(errno)));

  console_.flush();
  for (size_t i = 0; i < outputs.size(); ++i)
    if (waited[first_output + i].revents != 0) outputs[i]->read_some();
  handle_signals();
  const auto now = net::Clock::now();
  for (Unit& unit : units_) {
    if (!unit.attempt) continue;
    unit.attempt->notice_endings();
    unit.attempt->send_due(now);
  }
  if (const int signal = stop_plan_.take(now)) {
    signal_all(signal);
    if (options_.roles && stage_ == Stage::Running) stage_ = Stage::Stopping;
  }
}

void Supervisor::handle_signals() {
  while (const int signal = signals_.next()) {
    if (signal == SIGCHLD) {
      for (Unit& unit : units_)
        if (unit.attempt) unit.attempt->follow_stop();
    } else if (signal == SIGTSTP) {
      pause();
    } else {
      interrupt(signal);
    }
  }
}

/// The first signal is passed on, and the ranks get time to end; the second kills them. With roles
/// it is the manager who is told, always by SIGTERM: it ends the job at the end of a step, and
/// workers then end by themselves.
void Supervisor::interrupt(int signal) {
  const auto now = net::Clock::now();
  // Both the kernel and the shell say that a terminal was closed: the second is no new wish.
  if (signal == SIGHUP && interrupted_by_ != 0) return;
  const bool at_once = interrupted_by_ != 0 || (options_.roles && signal == SIGQUIT);
  if (interrupted_by_ == 0) interrupted_by_ = signal;
  if (at_once) return stop_plan_.plan({{0s, SIGKILL}}, now);
  for (Unit& unit : units_)
    if (unit.attempt && (!options_.roles || unit.is_manager()))
      unit.attempt->interrupt(options_.roles ? SIGTERM : signal);
  if (stage_ == Stage::Running)
    stop_plan_.plan({{options_.interrupt_grace, SIGTERM}, {options_.grace, SIGKILL}}, now);
}

void Supervisor::pause() {
  signal_all(SIGSTOP);
  raise(SIGSTOP);
  signal_all(SIGCONT);
}

void Supervisor::signal_all(int signal) {
  for (Unit& unit : units_)
    if (unit.attempt) unit.attempt->signal_groups(signal);
}

/// All ranks of a unit have ended.
void Supervisor::on_over(Unit& unit) {
  Outcome outcome = unit.attempt->end();
  unit.attempt.reset();
  if (interrupted_by_ == 0) interrupted_by_ = outcome.interrupted_by;
  // What the manager says of the run counts also when all others have ended.
  if (stage_ == Stage::Closing && unit.is_manager() && outcome.failure &&
      outcome.failure->ending.signal == 0)
    failure_ = std::move(outcome.failure);
  if (stage_ != Stage::Running) return;
  if (!outcome.failure) return close_if_done();
  const bool was_quick = net::Clock::now() - unit.began < kQuick;
  unit.quick_failures = was_quick ? unit.quick_failures + 1 : 0;
  if (may_try_again(unit, *outcome.failure))
    restart(unit, *outcome.failure);
  else
    give_up(std::move(*outcome.failure));
}

/// When all that work are done, the others need not serve any more.
void Supervisor::close_if_done() {
  if (std::ranges::any_of(units_, [](const Unit& unit) { return unit.works() && unit.attempt; }))
    return;
  stage_ = Stage::Closing;
  stop_plan_.plan({{0s, SIGTERM}, {options_.grace, SIGKILL}}, net::Clock::now());
}

bool Supervisor::may_try_again(const Unit& unit, Failure& failure) const {
  if (has_code_of(failure, options_.final_codes) || has_code_of(failure, options_.answers))
    return false;
  if (!unit.job.role) return interrupted_by_ == 0 && unit.job.attempt < options_.restarts();
  // A manager that SIGTERM kills, or that fails by itself, does not end the job as it was asked to:
  // nobody would.
  if (unit.is_manager() && interrupted_by_ != 0 &&
      (failure.ending.signal == SIGTERM || failure.ending.signal == 0))
    return false;
  if (unit.quick_failures == kQuickFailures) {
    failure.remark = fmt::format("it failed {} times in a row within {} s of its start",
                                 kQuickFailures, kQuick.count());
    return false;
  }
  return unit.job.attempt < options_.restarts();
}

void Supervisor::restart(Unit& unit, const Failure& failure) {
  const std::string what = !unit.job.role ? fmt::format("all {} ranks", unit.job.num_ranks)
                           : unit.job.num_ranks == 1
                               ? "it"
                               : fmt::format("its {} ranks", unit.job.num_ranks);
  ++unit.job.attempt;
  unit.job.ends = unit.is_manager() && interrupted_by_ != 0;
  console_.err().say(fmt::format("{}: {}; starting {} again (restart {} of {})", options_.speaker,
                                 sentence(failure), what, unit.job.attempt, options_.restarts()));
  console_.flush();
  start(unit);
}

void Supervisor::give_up(Failure failure) {
  failure_ = std::move(failure);
  stage_ = Stage::Stopping;
  stop_plan_.plan({{0s, SIGTERM}, {options_.grace, SIGKILL}}, net::Clock::now());
}

/// Whether a job with roles was asked to end, and did so at the end of a step.
bool Supervisor::ended_in_order() const {
  return options_.roles && interrupted_by_ != 0 && stage_ == Stage::Closing &&
         (!failure_ || failure_->ending.code == kStoppedEarly);
}

/// The exit code, after a word about what failed.
int Supervisor::conclude() {
  if (ended_in_order()) {
    // Where managers say that they stopped early, one that does not has done all work.
    const bool says_so =
        std::ranges::find(options_.answers, kStoppedEarly) != options_.answers.end();
    const bool is_done = says_so && !failure_;
    return is_done || interrupted_by_ == SIGINT ? 0 : 128 + interrupted_by_;
  }
  if (failure_ && obeyed(*failure_, interrupted_by_)) return 128 + interrupted_by_;
  if (!failure_) return options_.roles && interrupted_by_ != 0 ? 128 + interrupted_by_ : 0;
  Failure& failure = *failure_;
  if (has_code_of(failure, options_.answers)) return failure.ending.exit_code();
  // In a training run on servers, what it wrote on stderr was shown under its name.
  const bool is_bare = options_.roles && options_.display == Display::Bare;
  const bool is_said = failure.was_shown && (is_usage(failure) || is_bare);
  if (is_said) failure.last_lines.clear();  // its own error message is enough
  if (!is_said || options_.display == Display::Prefixed || options_.roles)
    console_.err().say(report(failure, options_.speaker));
  return failure.ending.exit_code();
}

}  // namespace trireme::launch
