#include "trireme/ps/node_thread.h"

#include <poll.h>
#include <sched.h>
#include <sys/random.h>

#include <cerrno>
#include <chrono>

#include "trireme/core/error.h"

namespace trireme::ps {

namespace {

/// How often a node looks at the clock.
constexpr std::chrono::milliseconds kTick{5};
/// How long a thread that handled messages yields before it sleeps: an answer often comes soon, and
/// to be woken takes tens of microseconds.
constexpr std::chrono::microseconds kYield{60};
/// How often the node's thread looks whether another one has stopped handling its messages.
constexpr std::chrono::milliseconds kLookAgain{2};
/// How often a node says that it cannot look for the manager.
constexpr std::chrono::seconds kNotePause{5};

}  // namespace

/// The steady clock, streams and files.
class NodeThread::ProcessEnvironment final : public Environment {
 public:
  explicit ProcessEnvironment(NodeThread& thread) : thread_(thread) {}

  Time now() override {
    return std::chrono::duration_cast<Time>(std::chrono::steady_clock::now().time_since_epoch());
  }
  uint64_t random() override {
    uint64_t number = 0;
    while (number == 0)  // 0 stands for none
      if (::getrandom(&number, sizeof number, 0) < 0 && errno != EINTR)
        throw CommError(fmt::format("no random bytes: {}", core::errno_text(errno)));
    return number;
  }
  void send(NodeId to, uint32_t lane, Frame message) override {
    thread_.connections_.send({to, lane}, message);
  }
  uint64_t way_to(NodeId to, uint32_t lane) override {
    return thread_.connections_.way_to({to, lane});
  }
  bool is_open(uint64_t way) override { return thread_.connections_.is_open(way); }

  void append(std::string_view record) override { log().append(record); }
  void sync() override { log().sync(); }
  std::string read_log() override { return log().read(); }
  void replace_log(std::string_view text) override { log().replace(text); }

  void begin(const SnapshotOrder& order) override { files().begin(order); }
  void save(const SnapshotPart& part, RangeState::Image image) override {
    thread_.saver_.save(part, std::move(image));
  }
  void complete(const SnapshotOrder& order, const std::vector<std::string>& contents) override {
    files().complete(order, contents);
  }
  void prune(const SnapshotOrder& newest) override { files().prune(newest); }
  void abandon(const SnapshotOrder& order) override { files().abandon(order); }
  std::optional<RangeState::Image> load(const SnapshotPart& part) override {
    if (!thread_.options_.snapshots) return {};
    return files().load(part);
  }
  void note(const std::string& line) override { thread_.options_.note(line); }

 private:
  ManagerLog& log() {
    core::check(thread_.options_.log != nullptr, "this node has no log: only the manager has one");
    return *thread_.options_.log;
  }
  const SnapshotFiles& files() {
    core::check(thread_.options_.snapshots != nullptr,
                "this job keeps no snapshots: give its nodes a folder for them");
    return *thread_.options_.snapshots;
  }

  NodeThread& thread_;
};

NodeThread::NodeThread(NodeOptions options)
    : options_([&] {
        options.connections.find = [this](LaneId who) { return find(who); };
        return std::move(options);
      }()),
      connections_(options_.connections, [this](const Frame& frame) { node_->receive(frame); }),
      environment_(std::make_unique<ProcessEnvironment>(*this)),
      tick_at_(net::Clock::now()),
      saver_(
          options_.snapshots,
          [this](const SnapshotPart& part, std::string contents) {
            on_saved(part, std::move(contents));
          },
          [this](const SnapshotPart& part) { return is_wanted(part); }, options_.note) {
  connections_.on_lost = [this](NodeId node) { node_->on_stream_lost(node); };
}

NodeThread::~NodeThread() {
  thread_.request_stop();
  connections_.wake();
  if (thread_.joinable()) thread_.join();
}

/// A place that cannot be asked is a reason to tell people, not to end: it may come back.
std::optional<Endpoint> NodeThread::find_manager() {
  const auto endpoint = options_.place->find();
  if (endpoint || net::Clock::now() < note_again_) return endpoint;
  if (const std::string trouble = options_.place->trouble(); !trouble.empty()) {
    options_.note(fmt::format("looking for the manager: {}", trouble));
    note_again_ = net::Clock::now() + kNotePause;
  }
  return {};
}

std::optional<Endpoint> NodeThread::find(LaneId who) {
  if (who.node.role == Role::Manager) return find_manager();
  if (who.node.role != Role::Server || !node_) return {};  // workers do not listen
  const auto& servers = node_->view().servers;
  const auto found = servers.find(who.node.index);
  if (found == servers.end() || who.lane >= found->second.lanes.size()) return {};
  return found->second.lanes[who.lane];
}

void NodeThread::start(const Make& make) {
  node_ = make(*environment_);
  thread_ = std::jthread([this](std::stop_token stop) { loop(std::move(stop)); });
}

/// What the node throws ends it, on whichever thread that is.
void NodeThread::guard(const std::function<void()>& body) {
  if (failure_) std::rethrow_exception(failure_);
  try {
    body();
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

/// Handles what has come, and the time.
void NodeThread::turn() {
  guard([&] {
    if (connections_.step(net::Deadline::min())) yields_until_ = net::Clock::now() + kYield;
    if (net::Clock::now() < tick_at_) return;
    if (options_.log) options_.log->check_held();
    node_->tick();
    tick_at_ = net::Clock::now() + kTick;
  });
}

/// Until something has come, the next tick or the deadline. For a moment after the last message it
/// only yields.
void NodeThread::rest(std::unique_lock<std::mutex>& lock, net::Deadline until) {
  if (connections_.has_waiting()) return;
  const auto now = net::Clock::now(), end = std::min(tick_at_, until);
  if (end <= now) return;
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(end - now);
  const bool yields = now < yields_until_;
  pollfd ready{connections_.fd(), POLLIN, 0};
  const timespec time{.tv_sec = 0, .tv_nsec = left.count()};
  lock.unlock();
  if (yields)
    ::sched_yield();
  else
    ::ppoll(&ready, 1, &time, nullptr);
  lock.lock();
}

void NodeThread::loop(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  try {
    while (!stop.stop_requested()) {
      if (waiting_ > 0) {  // another thread handles the messages
        lock.unlock();
        std::this_thread::sleep_for(kLookAgain);
        lock.lock();
        continue;
      }
      turn();
      rest(lock, net::Deadline::max());
    }
  } catch (...) {  // `guard` keeps it for those who ask
    options_.note("this node has ended because of an error");
  }
}

void NodeThread::call(const std::function<void(Node&)>& call) {
  const std::lock_guard lock(mutex_);
  guard([&] { call(*node_); });
  if (connections_.has_waiting()) connections_.wake();
}

bool NodeThread::wait(const std::function<bool()>& done, net::Deadline until) {
  struct Count {
    std::atomic<int>& number;
    explicit Count(std::atomic<int>& of) : number(of) { ++number; }
    ~Count() { --number; }
  } count(waiting_);
  std::unique_lock lock(mutex_);
  for (;;) {
    turn();
    if (done()) return true;
    if (net::Clock::now() >= until) return false;
    rest(lock, until);
  }
}

void NodeThread::on_saved(const SnapshotPart& part, std::string contents) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  try {
    guard([&] { node_->on_saved(part, std::move(contents)); });
  } catch (...) {  // kept by `guard`
  }
}

/// Not if the snapshot was given up, or ordered again, or belongs to an earlier generation.
bool NodeThread::is_wanted(const SnapshotPart& part) const {
  const std::lock_guard lock(mutex_);
  return !failure_ && node_->view().snapshot.snapshot == part.snapshot;
}

std::exception_ptr NodeThread::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace trireme::ps
