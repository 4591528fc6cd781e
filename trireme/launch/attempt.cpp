#include "trireme/launch/attempt.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "trireme/core/terminal.h"
#include "trireme/launch/machine.h"

namespace trireme::launch {

using namespace std::chrono_literals;

namespace {

constexpr auto kLastWords = 300ms;  ///< for the others to report what they saw of a failure

/// Whether a signal or a debugger holds the process.
bool is_stopped(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t name_end = text.rfind(") ");  // the name may contain anything
  return name_end != text.npos && (text[name_end + 2] == 'T' || text[name_end + 2] == 't');
}

}  // namespace

struct Attempt::Rank {
  int local_rank = 0;
  Child child;
  std::optional<ExitStatus> ending;
  Tail tail;
  std::unique_ptr<Output> out;  ///< null: the rank has the launcher's own stdout or stderr
  std::unique_ptr<Output> err;
};

Attempt::Attempt(const RunOptions& options, const Job& job, const Keeper& keeper, Console& console)
    : options_(options),
      job_(job),
      keeper_(keeper),
      console_(console),
      deaths_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!deaths_) throw Error(fmt::format("epoll_create1: {}", core::errno_text(errno)));
}

Attempt::~Attempt() {
  end_groups();
  for (const auto& rank : ranks_) {
    keeper_.over(rank->child.pid);
    while (waitpid(rank->child.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

Outcome Attempt::end() {
  end_groups();
  Outcome outcome{.failure = std::nullopt, .interrupted_by = interrupted_by_};
  if (failed_ != nullptr) outcome.failure = failure();
  return outcome;
}

std::string Attempt::full_name(const Rank& rank) const {
  const pid_t pid = rank.child.pid;
  if (!job_.role)
    return fmt::format("rank {} (pid {} on {})", job_.rank(rank.local_rank), pid, host_name());
  if (job_.num_ranks == 1) return fmt::format("{} (pid {})", job_.role->name(), pid);
  return fmt::format("rank {} of {} (pid {})", rank.local_rank, job_.role->name(), pid);
}

Failure Attempt::failure() const {
  Failure failure{.who = full_name(*failed_),
                  .ending = *failed_->ending,
                  .last_lines = {failed_->tail.lines().begin(), failed_->tail.lines().end()}};
  if (stopped_ != nullptr) failure.stopped = full_name(*stopped_);
  if (options_.display == Display::Prefixed || job_.role) {
    failure.was_shown = failed_->err == nullptr || failed_->err->is_shown();
    return failure;
  }
  // What rank 0 wrote has been shown. If all ranks fail for the same reason, they write the same
  // lines.
  const auto& heard = ranks_[0]->tail.lines();
  const auto was_heard = [&](const std::string& line) {
    return std::ranges::find(heard, line) != heard.end();
  };
  failure.was_shown = failed_ == ranks_[0].get() ||
                      (!failure.last_lines.empty() && was_heard(failure.last_lines.back()));
  std::erase_if(failure.last_lines, was_heard);
  return failure;
}

bool Attempt::running() const {
  return std::ranges::any_of(ranks_, [](const auto& rank) { return !rank->ending; });
}

void Attempt::start(const Signals& signals) {
  Spawner spawner(options_.command, keeper_, signals);
  for (int local_rank = 0; local_rank < job_.num_ranks; ++local_rank)
    start_rank(spawner, local_rank);
  spawner.finish();
  const bool alone = !job_.role && job_.num_ranks == 1;
  if (alone && Terminal::available()) terminal_.emplace(ranks_[0]->child.pid);
}

void Attempt::start_rank(Spawner& spawner, int local_rank) {
  auto rank = std::make_unique<Rank>();
  rank->local_rank = local_rank;
  // A rank that is alone gets the launcher's own files. With Display::Bare so does rank 0, but we
  // read its stderr, so that the same lines of other ranks are not shown again.
  const bool alone = job_.is_one_process();
  const bool logs = !options_.log_dir.empty();
  if (logs || !(alone || is_bare(local_rank))) rank->out = make_output(*rank, local_rank, false);
  if (logs || !alone) rank->err = make_output(*rank, local_rank, true);

  const bool has_stdin =
      !job_.role && local_rank == 0 && (job_.num_ranks == 1 || isatty(STDIN_FILENO) == 0);
  const net::Fd nothing(has_stdin ? -1 : open("/dev/null", O_RDONLY | O_CLOEXEC));
  const net::Fd out = rank->out ? rank->out->take_writer() : net::Fd();
  const net::Fd err = rank->err ? rank->err->take_writer() : net::Fd();
  rank->child = spawner.start(rank_environment(job_, local_rank),
                              {.in = nothing.get(), .out = out.get(), .err = err.get()});
  ranks_.push_back(std::move(rank));
  epoll_event watched{.events = EPOLLIN, .data = {.ptr = ranks_.back().get()}};
  if (epoll_ctl(deaths_.get(), EPOLL_CTL_ADD, ranks_.back()->child.pidfd.get(), &watched) != 0)
    throw Error(fmt::format("epoll_ctl: {}", core::errno_text(errno)));
}

/// Whether this is the one process whose output is shown as it is.
bool Attempt::is_bare(int local_rank) const {
  return options_.display == Display::Bare && local_rank == 0 &&
         (!job_.role || job_.role->kind == UnitRole::Kind::Manager);
}

/// Of a parameter server job people see what any process says on stderr: that it waits, for one.
bool Attempt::shown(int local_rank, bool is_err) const {
  if (options_.display == Display::Bare) return is_bare(local_rank) || (job_.role && is_err);
  return options_.shown_ranks.empty() ||
         std::ranges::find(options_.shown_ranks, local_rank) != options_.shown_ranks.end();
}

std::unique_ptr<Output> Attempt::make_output(Rank& rank, int local_rank, bool is_err) {
  const auto chosen = [&](const StreamChoice& choice) {
    return is_err ? choice.of(local_rank).err : choice.of(local_rank).out;
  };
  const bool teed = chosen(options_.tee) || (!options_.tee.any() && !options_.redirects.any());
  Destinations to{.sink = nullptr, .prefix = "", .log_file = "", .tail = &rank.tail};
  if (shown(local_rank, is_err) && (teed || !chosen(options_.redirects)))
    to.sink = is_err ? &console_.err() : &console_.out();
  const std::string label = job_.label(local_rank);
  if (!job_.is_one_process() && options_.display == Display::Prefixed)
    to.prefix = fmt::format("[{}] ", label);
  if (options_.display == Display::Bare)
    to.prefix = std::string(core::line_start(STDERR_FILENO)) +
                (is_bare(local_rank) ? std::string() : fmt::format("[{}] ", label));
  if (!options_.log_dir.empty() && (teed || chosen(options_.redirects))) {
    std::string folder =
        fmt::format("{}/{}/attempt_{}/{}", options_.log_dir, job_.run_id, job_.attempt, label);
    std::ranges::replace(folder.begin() + static_cast<std::ptrdiff_t>(folder.rfind('/')),
                         folder.end(), ' ', '-');
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw Error(fmt::format("cannot make '{}': {}", folder, error.message()));
    to.log_file = folder + (is_err ? "/stderr.log" : "/stdout.log");
  }
  return std::make_unique<Output>(std::move(to));
}

std::vector<Output*> Attempt::outputs() const {
  std::vector<Output*> readable;
  for (const auto& rank : ranks_)
    for (Output* output : {rank->out.get(), rank->err.get()})
      if (output != nullptr && output->poll_fd() >= 0) readable.push_back(output);
  return readable;
}

void Attempt::send_due(net::Deadline now) {
  if (const int signal = stop_plan_.take(now)) signal_groups(signal);
}

void Attempt::interrupt(int signal) {
  was_interrupted_ = true;
  if (failed_ != nullptr)
    stop_plan_.plan({{0s, SIGTERM}, {options_.grace, SIGKILL}}, net::Clock::now());
  else
    signal_groups(signal);
}

void Attempt::follow_stop() {
  if (terminal_) terminal_->follow_stop();
}

void Attempt::notice_endings() {
  // epoll lists the ranks in the order in which they ended, so we find the first failure even if we
  // look late.
  std::vector<epoll_event> ended(ranks_.size());
  const int count = epoll_wait(deaths_.get(), ended.data(), static_cast<int>(ended.size()), 0);
  for (int i = 0; i < count; ++i) {
    Rank& rank = *static_cast<Rank*>(ended[static_cast<size_t>(i)].data.ptr);
    siginfo_t info{};
    const auto pid = static_cast<id_t>(rank.child.pid);
    if (waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) continue;
    epoll_ctl(deaths_.get(), EPOLL_CTL_DEL, rank.child.pidfd.get(), nullptr);
    rank.ending = info.si_code == CLD_EXITED ? ExitStatus{.code = info.si_status, .signal = 0}
                                             : ExitStatus{.code = 0, .signal = info.si_status};
    if (!rank.ending->good() && failed_ == nullptr) fail(rank);
  }
}

void Attempt::fail(const Rank& rank) {
  failed_ = &rank;
  for (const auto& other : ranks_)
    if (!other->ending && is_stopped(other->child.pid)) stopped_ = other.get();
  const int signal = rank.ending->signal;
  if (terminal_ && (signal == SIGINT || signal == SIGQUIT))
    interrupted_by_ = signal;  // the user pressed Ctrl-C
  if (was_interrupted_ || interrupted_by_ != 0)
    return;  // it was told to end, and the others may still be saving
  stop_plan_.plan({{kLastWords, SIGTERM}, {options_.grace, SIGKILL}}, net::Clock::now());
}

void Attempt::signal_groups(int signal) {
  for (const auto& rank : ranks_) {
    kill(-rank->child.pid, signal);
    if (signal == SIGTERM)
      kill(-rank->child.pid, SIGCONT);  // a stopped process does not handle TERM
  }
}

void Attempt::end_groups() {
  terminal_.reset();
  signal_groups(SIGKILL);
  for (const auto& rank : ranks_)
    for (Output* output : {rank->out.get(), rank->err.get()})
      if (output != nullptr) output->finish();
}

}  // namespace trireme::launch
