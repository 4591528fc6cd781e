#include "trireme/ps/role.h"

#include <fmt/format.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/ps/server_process.h"

namespace trireme::ps {

namespace {

constexpr std::chrono::milliseconds kLook{20};
/// How long the manager must be gone for a server that has joined to end: if the job is over, and
/// if it is not.
constexpr std::chrono::seconds kOver{1}, kGone{20};

uint32_t number_of(const char* name, int64_t least) {
  constexpr int64_t kMost = 1 << 20;
  const auto value = core::env_int(name);
  if (!value || *value < least || *value > kMost)
    throw ConfigError(
        fmt::format("{} is {}: it must be {} to {}; start the program by trireme run --servers S "
                    "--workers W",
                    name, value ? std::to_string(*value) : "not set", least, kMost));
  return static_cast<uint32_t>(*value);
}

/// Counts signals that ask this process to end, while the object exists.
class EndSignals {
 public:
  EndSignals() {
    count_ = 0;
    struct sigaction counts {};
    counts.sa_handler = [](int) { ++count_; };
    counts.sa_flags = SA_RESTART;
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &counts, &before_[i]);
  }
  ~EndSignals() {
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  int count() const { return count_; }

 private:
  static constexpr std::array kSignals{SIGTERM, SIGINT, SIGHUP};
  inline static std::atomic<int> count_ = 0;
  std::array<struct sigaction, kSignals.size()> before_{};
};

/// Returns when the job is over and the launcher ends its processes.
void manage(const JobConfig& job, const NodeOptions& options, const ServeOptions& serving) {
  const EndSignals signals;
  NodeThread thread(options);
  thread.start([&](Environment& environment) {
    auto manager = std::make_unique<Manager>(job, environment);
    if (serving.last_snapshot) manager->want_last_snapshot();
    manager->keep_result();
    manager->on_reports = serving.on_reports;
    return manager;
  });
  options.place->announce(thread.endpoint());
  // A manager that ended the job early stays until workers have heard of it: its launcher ends it,
  // by a second signal, when they are gone. One that is started again after the first is told so.
  const int before = core::env("TRIREME_PS_ENDS") ? 1 : 0;
  bool told = false;  // of the end, while the node can do nothing else
  for (int heard = 0;; std::this_thread::sleep_for(kLook)) {
    const int now = before + signals.count();
    bool was_over = false, is_over = false;
    thread.call([&](Node& node) {
      auto& manager = static_cast<Manager&>(node);
      was_over = manager.view().over;
      if (heard == 0 && now > 0) manager.stop_early();
      is_over = manager.view().over;
      if (is_over && !std::exchange(told, true) && serving.on_over)
        serving.on_over(manager.books().snapshot());
    });
    if (heard == 0 && now > 0 && was_over) return;
    if (now > 1 && is_over) return;
    if (now > 1) throw Error("the manager was told to end twice, before all work was done");
    heard = now;
  }
}

void serve_manager(const JobConfig& job, NodeOptions options, const ServeOptions& serving) {
  options.log = options.place->open_log();
  manage(job, options, serving);
  try {
    options.place->forget();
  } catch (const CommError& error) {
    options.note(fmt::format("the log of the job may stay: {}", error.what()));
  }
}

/// Since when the manager's place is empty, as it is when the launcher has ended the job: a server
/// that has joined by itself is told by nobody. A manager that is started again leaves its old
/// address there, in etcd until its lease has run out.
class EmptyPlace {
 public:
  explicit EmptyPlace(const JobRole& role) : place_(make_manager_place(role.manager, role.job)) {}
  net::Clock::duration look() {
    constexpr std::chrono::milliseconds kAgain{500};
    const auto now = net::Clock::now();
    if (now >= look_at_) {
      look_at_ = now + kAgain;
      if (place_->find() || !place_->trouble().empty()) seen_at_ = now;
    }
    return now - seen_at_;
  }

 private:
  std::unique_ptr<ManagerPlace> place_;
  net::Deadline look_at_{}, seen_at_ = net::Clock::now();
};

void serve_ranges(const JobConfig& job, const NodeOptions& options, const JobRole& role) {
  const EndSignals signals;
  const uint32_t index = role.node.index;
  const bool has_joined = index >= job.servers;  // beside those of the launcher
  EmptyPlace empty(role);
  ServerProcess server(options, job, index);
  for (int heard = 0;; std::this_thread::sleep_for(kLook)) {
    if (const auto failure = server.failure()) std::rethrow_exception(failure);
    const auto alone = has_joined ? empty.look() : net::Clock::duration{};
    if (alone > kOver && server.may_stop()) return;
    if (alone > kGone)
      throw Error(fmt::format("server {}: the manager is gone, and the job was not over", index));
    const int now = signals.count();
    if (heard == 0 && now > 0) server.leave();
    if (now > 0 && server.may_stop()) return;
    if (now > 1)
      throw Error(
          fmt::format("server {} was told to end twice, before others had its ranges", index));
    heard = now;
  }
}

}  // namespace

std::optional<JobRole> role_of_environment() {
  const auto name = core::env("TRIREME_ROLE");
  if (!name) return {};
  JobRole role{.servers = number_of("TRIREME_PS_SERVERS", 1),
               .workers = number_of("TRIREME_PS_WORKERS", 1),
               .worker_ranks = number_of("TRIREME_PS_RANKS", 1),
               .job = core::env("TRIREME_PS_JOB").value_or("job"),
               .manager = core::env("TRIREME_PS_MANAGER").value_or("")};
  const uint32_t index = number_of("TRIREME_ROLE_INDEX", 0);
  if (*name == "manager")
    role.node = kManager;
  else if (*name == "server")
    role.node = {Role::Server, index};
  else if (*name == "worker")
    role.node = {Role::Worker,
                 index * role.worker_ranks + (role.worker_ranks > 1 ? number_of("RANK", 0) : 0)};
  else
    throw ConfigError(fmt::format("TRIREME_ROLE is '{}': use manager, server or worker", *name));
  return role;
}

NodeOptions node_options(const JobRole& role, const JobConfig& job, const std::string& listen) {
  NodeOptions options{.connections = {.job = job.name,
                                      .secret = net::secret_of_job(job.name),
                                      .lanes = job.lanes,
                                      .me = {role.node, 0}},
                      .place = make_manager_place(role.manager, job.name)};
  if (role.node.role != Role::Worker) options.connections.listen = net::Address{listen, 0};
  options.note = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  return options;
}

void serve(const JobConfig& job, const JobRole& role, const ServeOptions& options) {
  check(job);
  NodeOptions node = node_options(role, job, options.listen);
  node.snapshots = options.snapshots;
  if (options.note) node.note = options.note;
  if (role.node.role == Role::Manager) return serve_manager(job, std::move(node), options);
  core::check(role.node.role == Role::Server, "serve: {} is no manager and no server",
              name_of(role.node));
  serve_ranges(job, node, role);
}

}  // namespace trireme::ps
