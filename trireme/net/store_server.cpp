#include "trireme/net/store_server.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/net/store_session.h"

namespace trireme::net {

namespace {

constexpr auto kProveWithin = std::chrono::seconds(5);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
/// Connections that have not proven themselves, beyond one for each rank.
constexpr size_t kSpareUnproven = 256;
/// Few at a time, so that those that came before get on with their proofs in between.
constexpr int kAcceptsPerTurn = 16;

constexpr uint64_t kListenerId = 0;
constexpr uint64_t kStopId = 1;
constexpr uint64_t kFirstSessionId = 2;

Fd checked(int fd, const char* what) {
  if (fd < 0) throw CommError(fmt::format("store server: {}: {}", what, core::errno_text(errno)));
  return Fd(fd);
}

}  // namespace

/// The thread, its epoll loop, the table and the clients. Clients are known by numbers that grow,
/// so an event of one that has just been dropped finds nobody, and the oldest come first.
class StoreServer::Loop {
 public:
  Loop(const Address& bind, const Secret& secret, const std::string& job, int world_size)
      : listener_(bind),
        secret_(secret),
        me_{.job = job, .role = "store", .rank = 0, .size = world_size},
        max_unproven_(kSpareUnproven + static_cast<size_t>(world_size)),
        epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create")),
        stop_(checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {
    const Handshake refuses_a_bad_job_id(Handshake::Side::Server, secret_, me_);
    watch(EPOLL_CTL_ADD, listener_.fd(), EPOLLIN, kListenerId);
    watch(EPOLL_CTL_ADD, stop_.get(), EPOLLIN, kStopId);
    start_thread();
  }

  ~Loop() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
    thread_.join();
  }

  Address address() const { return listener_.address(); }

 private:
  /// Signals are for the threads of the program, not for this one.
  void start_thread() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void run() {
    std::array<epoll_event, 64> events;
    for (;;) {
      const int num_events = ::epoll_wait(epoll_.get(), events.data(), events.size(), timeout_ms());
      for (int i = 0; i < num_events; ++i) {
        const uint64_t id = events[static_cast<size_t>(i)].data.u64;
        if (id == kStopId) return;
        if (id == kListenerId)
          accept_some();
        else
          on_event(id);
      }
      drop_overdue();
    }
  }

  int timeout_ms() const {
    Deadline next = accept_again_;
    if (!unproven_.empty()) next = std::min(next, sessions_.at(*unproven_.begin()).prove_by());
    if (next == Deadline::max()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
    return static_cast<int>(std::max<int64_t>(0, left.count()));
  }

  /// The unproven are in the order in which they came, so the overdue ones come first.
  void drop_overdue() {
    const auto now = Clock::now();
    while (!unproven_.empty() && sessions_.at(*unproven_.begin()).prove_by() <= now)
      drop(*unproven_.begin());
    if (accept_again_ <= now) resume_accepting();
  }

  void accept_some() {
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
      Fd fd(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd) {
        admit(std::move(fd));
        continue;
      }
      const bool is_out_of_room =
          errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (!is_out_of_room) return;
      if (unproven_.empty()) return pause_accepting();
      drop(*unproven_.begin());
    }
  }

  void admit(Fd fd) {
    // Room is made by dropping the oldest: an honest client proves itself within milliseconds.
    if (unproven_.size() >= max_unproven_) drop(*unproven_.begin());
    const uint64_t id = next_id_++;
    try {
      Handshake handshake(Handshake::Side::Server, secret_, me_);
      const auto [place, is_new] = sessions_.try_emplace(
          id, Socket(std::move(fd)), std::move(handshake), Clock::now() + kProveWithin);
      unproven_.insert(id);
      place->second.interest = EPOLLIN;
      watch(EPOLL_CTL_ADD, place->second.fd(), EPOLLIN, id);
    } catch (const std::exception&) {
      drop(id);
    }
  }

  /// Without room for one more descriptor the listener stays ready; asking it again at once would
  /// keep a core busy with nothing.
  void pause_accepting() {
    watch(EPOLL_CTL_MOD, listener_.fd(), 0, kListenerId);
    accept_again_ = Clock::now() + kAcceptPause;
  }

  void resume_accepting() {
    watch(EPOLL_CTL_MOD, listener_.fd(), EPOLLIN, kListenerId);
    accept_again_ = Deadline::max();
  }

  void on_event(uint64_t id) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    StoreSession& session = found->second;
    std::optional<std::string> changed_key;
    try {
      session.flush();
      if (const auto request = session.read()) changed_key = serve(id, session, *request);
      if (session.phase() == StoreSession::Phase::Serving) unproven_.erase(id);
      settle(id, session);
    } catch (const std::exception&) {
      drop(id);  // gone, or talks nonsense, or there is no memory for what it wants
    }
    if (changed_key) answer_waiters(*changed_key);
  }

  /// Sends what can be sent and asks for the events that the client's state needs.
  void settle(uint64_t id, StoreSession& session) {
    session.flush();
    if (session.is_over()) return drop(id);
    const uint32_t interest = session.has_output() ? EPOLLOUT : EPOLLIN;
    if (interest != session.interest) watch(EPOLL_CTL_MOD, session.fd(), interest, id);
    session.interest = interest;
  }

  /// Returns the key that may have come into being, if any.
  std::optional<std::string> serve(uint64_t id, StoreSession& session,
                                   const StoreRequest& request) {
    unpark(id, session);
    try {
      check_sizes(request.key, request.value, request.expected);
      if (request.op == StoreOp::Wait && !table_.get(request.key)) {
        park(id, session, request);
        return std::nullopt;
      }
      return apply(session, request);
    } catch (const MisuseError& error) {
      session.reply(request.number, StoreStatus::Misuse,
                    std::make_shared<const std::string>(error.what()));
      return std::nullopt;
    }
  }

  std::optional<std::string> apply(StoreSession& session, const StoreRequest& request) {
    const auto answer = [&](StoreTable::Value value) {
      const StoreStatus status = value ? StoreStatus::Found : StoreStatus::Absent;
      session.reply(request.number, status, std::move(value));
    };
    static const auto nothing = std::make_shared<const std::string>();
    switch (request.op) {
      case StoreOp::Set:
        table_.set(request.key, request.value);
        answer(nothing);
        return request.key;
      case StoreOp::Get:
      case StoreOp::Wait: answer(table_.get(request.key)); return std::nullopt;
      case StoreOp::Add:
        table_.add(request.key, request.delta);
        answer(table_.get(request.key));
        return request.key;
      case StoreOp::CompareAndSet:
        answer(table_.compare_and_set(request.key, request.expected, request.value));
        return request.key;
      case StoreOp::Erase:
        answer(table_.erase(request.key) ? nothing : nullptr);
        return std::nullopt;
    }
    return std::nullopt;
  }

  void park(uint64_t id, StoreSession& session, const StoreRequest& request) {
    waiters_[request.key].push_back(id);
    session.parked = {request.number, request.key};
  }

  void unpark(uint64_t id, StoreSession& session) {
    if (!session.parked) return;
    const auto found = waiters_.find(session.parked->key);
    std::erase(found->second, id);
    if (found->second.empty()) waiters_.erase(found);
    session.parked.reset();
  }

  void answer_waiters(const std::string& key) {
    const StoreTable::Value value = table_.get(key);
    if (!value) return;
    auto waiting = waiters_.extract(key);
    if (waiting.empty()) return;
    for (const uint64_t id : waiting.mapped()) {
      StoreSession& session = sessions_.at(id);
      const uint64_t number = session.parked->number;
      session.parked.reset();
      try {
        session.reply(number, StoreStatus::Found, value);
        settle(id, session);
      } catch (const std::exception&) {
        drop(id);
      }
    }
  }

  void drop(uint64_t id) {
    unproven_.erase(id);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    unpark(id, found->second);
    sessions_.erase(found);
  }

  void watch(int operation, int fd, uint32_t events, uint64_t id) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0)
      throw CommError(fmt::format("store server: epoll_ctl: {}", core::errno_text(errno)));
  }

  Listener listener_;
  Secret secret_;
  Identity me_;
  size_t max_unproven_;
  Fd epoll_;
  Fd stop_;
  uint64_t next_id_ = kFirstSessionId;
  Deadline accept_again_ = Deadline::max();
  StoreTable table_;
  std::map<uint64_t, StoreSession> sessions_;
  std::set<uint64_t> unproven_;
  std::unordered_map<std::string, std::vector<uint64_t>> waiters_;
  std::thread thread_;
};

StoreServer::StoreServer(const Address& bind, const Secret& secret, const std::string& job,
                         int world_size) {
  core::check(world_size > 0, "StoreServer: a world of {} ranks", world_size);
  loop_ = std::make_unique<Loop>(bind, secret, job, world_size);
}

StoreServer::~StoreServer() = default;

Address StoreServer::address() const {
  return loop_->address();
}

}  // namespace trireme::net
