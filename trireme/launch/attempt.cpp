#include "trireme/launch/attempt.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "trireme/core/terminal.h"

namespace trireme::launch {

using namespace std::chrono_literals;

namespace {

constexpr auto kLastWords = 300ms;  ///< for the others to report what they saw of a failure

/// How many milliseconds poll() may sleep; -1: for ever. Rounded up, so that it does not wake too
/// early.
int poll_timeout(std::optional<net::Deadline> due) {
  if (!due) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*due - net::Clock::now());
  return static_cast<int>(std::max<int64_t>(0, left.count()));
}

/// Whether a signal or a debugger holds the process.
bool is_stopped(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t name_end = text.rfind(") ");  // the name may contain anything
  return name_end != text.npos && (text[name_end + 2] == 'T' || text[name_end + 2] == 't');
}

}  // namespace

struct Attempt::Rank {
  int rank = 0;
  Child child;
  std::optional<ExitStatus> ending;
  Tail tail;
  std::unique_ptr<Output> out;  ///< null: the rank has the launcher's own stdout or stderr
  std::unique_ptr<Output> err;
};

Attempt::Attempt(const RunOptions& options, const Job& job, const Keeper& keeper, Signals& signals,
                 Console& console)
    : options_(options),
      job_(job),
      keeper_(keeper),
      signals_(signals),
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

Outcome Attempt::run() {
  start_ranks();
  while (running()) wait();
  end_groups();

  Outcome outcome{.failure = std::nullopt, .interrupted_by = interrupted_by_};
  if (failed_ != nullptr) outcome.failure = failure();
  return outcome;
}

Failure Attempt::failure() const {
  Failure failure{.rank = failed_->rank,
                  .pid = failed_->child.pid,
                  .ending = *failed_->ending,
                  .last_lines = {failed_->tail.lines().begin(), failed_->tail.lines().end()}};
  if (stopped_ != nullptr) {
    failure.stopped_rank = stopped_->rank;
    failure.stopped_pid = stopped_->child.pid;
  }
  if (options_.display == Display::Prefixed) {
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

void Attempt::start_ranks() {
  Spawner spawner(options_.command, keeper_, signals_);
  for (int local_rank = 0; local_rank < job_.num_ranks; ++local_rank)
    start_rank(spawner, local_rank);
  spawner.finish();
  const bool alone = job_.num_ranks == 1;
  if (alone && Terminal::available()) terminal_.emplace(ranks_[0]->child.pid);
}

void Attempt::start_rank(Spawner& spawner, int local_rank) {
  auto rank = std::make_unique<Rank>();
  rank->rank = job_.rank(local_rank);
  // A rank that is alone gets the launcher's own files. With Display::Bare so does rank 0, but we
  // read its stderr, so that the same lines of other ranks are not shown again.
  const bool alone = job_.num_hosts * job_.num_ranks == 1;
  const bool bare = options_.display == Display::Bare && local_rank == 0;
  const bool logs = !options_.log_dir.empty();
  if (logs || !(alone || bare)) rank->out = make_output(*rank, local_rank, false);
  if (logs || !alone) rank->err = make_output(*rank, local_rank, true);

  const bool has_stdin = local_rank == 0 && (job_.num_ranks == 1 || isatty(STDIN_FILENO) == 0);
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

bool Attempt::shown(int local_rank) const {
  if (options_.display == Display::Bare) return local_rank == 0;
  return options_.shown_ranks.empty() ||
         std::ranges::find(options_.shown_ranks, local_rank) != options_.shown_ranks.end();
}

std::unique_ptr<Output> Attempt::make_output(Rank& rank, int local_rank, bool is_err) {
  const auto chosen = [&](const StreamChoice& choice) {
    return is_err ? choice.of(local_rank).err : choice.of(local_rank).out;
  };
  const bool teed = chosen(options_.tee) || (!options_.tee.any() && !options_.redirects.any());
  Destinations to{.sink = nullptr, .prefix = "", .log_file = "", .tail = &rank.tail};
  if (shown(local_rank) && (teed || !chosen(options_.redirects)))
    to.sink = is_err ? &console_.err() : &console_.out();
  if (job_.num_hosts * job_.num_ranks > 1 && options_.display == Display::Prefixed)
    to.prefix = fmt::format("[{}] ", rank.rank);
  if (options_.display == Display::Bare) to.prefix = core::line_start(STDERR_FILENO);
  if (!options_.log_dir.empty() && (teed || chosen(options_.redirects))) {
    const std::string folder =
        fmt::format("{}/{}/attempt_{}/{}", options_.log_dir, job_.run_id, job_.attempt, rank.rank);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw Error(fmt::format("cannot make '{}': {}", folder, error.message()));
    to.log_file = folder + (is_err ? "/stderr.log" : "/stdout.log");
  }
  return std::make_unique<Output>(std::move(to));
}

void Attempt::wait() {
  std::vector<pollfd> waited{{signals_.fd(), POLLIN, 0}, {deaths_.get(), POLLIN, 0}};
  for (Sink* sink : {&console_.out(), &console_.err()})
    if (sink->pending()) waited.push_back({sink->fd(), POLLOUT, 0});
  std::vector<Output*> outputs;
  for (const auto& rank : ranks_)
    for (Output* output : {rank->out.get(), rank->err.get()})
      if (output != nullptr && output->poll_fd() >= 0) outputs.push_back(output);
  const size_t first_output = waited.size();
  for (const Output* output : outputs) waited.push_back({output->poll_fd(), POLLIN, 0});

  if (poll(waited.data(), waited.size(), poll_timeout(stop_plan_.due())) < 0 && errno != EINTR)
    throw Error(fmt::format("poll: {}", core::errno_text(errno)));

  console_.flush();
  for (size_t i = 0; i < outputs.size(); ++i)
    if (waited[first_output + i].revents != 0) outputs[i]->read_some();
  handle_signals();
  notice_endings();
  if (const int signal = stop_plan_.take(net::Clock::now())) signal_groups(signal);
}

void Attempt::handle_signals() {
  while (const int signal = signals_.next()) {
    if (signal == SIGCHLD) {
      if (terminal_) terminal_->follow_stop();
    } else if (signal == SIGTSTP) {
      pause();
    } else {
      interrupt(signal);
    }
  }
}

/// The first signal is passed on, and the ranks get time to end; the second kills them.
void Attempt::interrupt(int signal) {
  const auto now = net::Clock::now();
  // Both the kernel and the shell say that a terminal was closed: the second is no new wish.
  if (signal == SIGHUP && interrupted_by_ != 0) return;
  if (interrupted_by_ != 0) {
    stop_plan_.plan({{0s, SIGKILL}}, now);
  } else if (failed_ != nullptr) {
    stop_plan_.plan({{0s, SIGTERM}, {options_.grace, SIGKILL}}, now);
  } else {
    signal_groups(signal);
    stop_plan_.plan({{options_.interrupt_grace, SIGTERM}, {options_.grace, SIGKILL}}, now);
  }
  if (interrupted_by_ == 0) interrupted_by_ = signal;
}

void Attempt::pause() {
  signal_groups(SIGSTOP);
  raise(SIGSTOP);
  signal_groups(SIGCONT);
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
    interrupted_by_ = signal;        // the user pressed Ctrl-C
  if (interrupted_by_ != 0) return;  // it was told to end, and the others may still be saving
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
