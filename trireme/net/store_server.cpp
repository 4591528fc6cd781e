#include "trireme/net/store_server.h"

#include <fmt/ranges.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/net/acceptor.h"
#include "trireme/net/bytes.h"
#include "trireme/net/epoll.h"
#include "trireme/net/store_session.h"

namespace trireme::net {

namespace {

constexpr uint64_t kAcceptorId = 0;
constexpr uint64_t kStopId = 1;
constexpr uint64_t kFirstSessionId = 2;

}  // namespace

/// The thread, its epoll loop, the acceptor, the table and the clients. Clients have growing ids,
/// so an event for one that was just dropped finds nothing.
class StoreServer::Loop {
 public:
  Loop(Listener listener, const Secret& secret, const std::string& job, int world_size)
      : address_(listener.address()),
        acceptor_(listener.release(),
                  {.secret = secret,
                   .me = {.job = job, .role = "store", .rank = 0, .size = world_size},
                   .roles = {"rank"}},
                  [this](Socket socket, const Identity&) { welcome(std::move(socket)); }),
        stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!stop_) throw CommError(fmt::format("store server: {}", core::errno_text(errno)));
    epoll_.add(acceptor_.fd(), EPOLLIN, kAcceptorId);
    epoll_.add(stop_.get(), EPOLLIN, kStopId);
    start_thread();
  }

  ~Loop() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
    thread_.join();
  }

  const Address& address() const { return address_; }

 private:
  /// Starts the thread with all signals blocked: they are for the threads of the program.
  void start_thread() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    struct SignalMaskGuard {  // also if the thread cannot be started
      const sigset_t& mask;
      ~SignalMaskGuard() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
    } const restore{before};
    thread_ = std::thread([this] { run(); });
  }

  void run() {
    std::array<epoll_event, 64> events;
    for (;;) {
      for (const epoll_event& event : epoll_.wait(events, acceptor_.due())) {
        if (event.data.u64 == kStopId) return;
        if (event.data.u64 != kAcceptorId) on_event(event.data.u64);
      }
      step_acceptor();
    }
  }

  void step_acceptor() {
    const auto before = acceptor_.num_turned_away();
    acceptor_.step();
    if (acceptor_.num_turned_away() == before) return;
    // For ranks that wait for a rank that was refused here.
    table_.set(kTurnedAwayKey, fmt::format("{}", fmt::join(acceptor_.turned_away(), "\n")));
  }

  void welcome(Socket socket) {
    const uint64_t id = next_id_++;
    try {
      StoreSession& session = sessions_.try_emplace(id, std::move(socket)).first->second;
      session.interest = EPOLLIN;
      epoll_.add(session.fd(), EPOLLIN, id);
    } catch (const std::exception&) {
      drop(id);
    }
  }

  void on_event(uint64_t id) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    StoreSession& session = found->second;
    std::optional<std::string> changed_key;
    try {
      session.flush();
      if (const auto request = session.read()) changed_key = serve(id, session, *request);
      send_and_listen(id, session);
    } catch (const std::exception&) {
      drop(id);  // it is gone, sent nonsense, or there is no memory for its request
    }
    if (changed_key) answer_waiters(*changed_key);
  }

  /// Sends what can be sent and asks for the events that the client needs next.
  void send_and_listen(uint64_t id, StoreSession& session) {
    session.flush();
    const uint32_t interest = session.has_output() ? EPOLLOUT : EPOLLIN;
    if (interest != session.interest) epoll_.change(session.fd(), interest, id);
    session.interest = interest;
  }

  /// Returns the key that may have been created, if any.
  std::optional<std::string> serve(uint64_t id, StoreSession& session,
                                   const StoreRequest& request) {
    unpark(id, session);
    try {
      check_sizes(request.key, request.value, request.expected);
      if (request.op != StoreOp::Wait) return apply(session, request);
      auto keys = decode_list(request.value);
      std::reverse(keys.begin(), keys.end());  // keys are removed from the back
      session.parked = {request.number, request.value, std::move(keys)};
      if (!park(id, session)) answer_wait(session);
      return std::nullopt;
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
      case StoreOp::Get: answer(table_.get(request.key)); return std::nullopt;
      case StoreOp::Add:
        table_.add(request.key, request.delta);
        answer(table_.get(request.key));
        return request.key;
      case StoreOp::CompareAndSet:
        answer(table_.compare_and_set(request.key, request.expected, request.value));
        return request.key;
      case StoreOp::Erase:
        last_answer_.reset();
        answer(table_.erase(request.key) ? nothing : nullptr);
        return std::nullopt;
      case StoreOp::Wait: break;
    }
    return std::nullopt;
  }

  /// Lets a wait wait for the first of its keys that does not exist. Returns false if all exist.
  bool park(uint64_t id, StoreSession& session) {
    auto& keys = session.parked->keys;
    while (!keys.empty() && table_.get(keys.back())) keys.pop_back();
    if (keys.empty()) return false;
    waiters_[keys.back()].push_back(id);
    return true;
  }

  void unpark(uint64_t id, StoreSession& session) {
    const auto parked = std::exchange(session.parked, {});
    if (!parked || parked->keys.empty()) return;
    const auto found = waiters_.find(parked->keys.back());
    if (found == waiters_.end()) return;
    std::erase(found->second, id);
    if (found->second.empty()) waiters_.erase(found);
  }

  /// All keys of the session's wait exist.
  void answer_wait(StoreSession& session) {
    const auto parked = *std::exchange(session.parked, {});
    // Ranks mostly wait for the same keys and then share one answer.
    if (parked.list != last_list_ || !last_answer_) {
      std::string values;
      for (const std::string& key : decode_list(parked.list)) {
        const auto value = table_.get(key);
        core::check(value != nullptr, "store: key '{}' was erased while it was waited for",
                    printable(key));
        put_in_list(values, *value);
      }
      core::check(values.size() <= kMaxListBytes, "store: a wait for {} bytes; the limit is {}",
                  values.size(), kMaxListBytes);
      last_list_ = parked.list;
      last_answer_ = std::make_shared<const std::string>(std::move(values));
    }
    session.reply(parked.number, StoreStatus::Found, last_answer_);
  }

  /// The key exists now: the clients that waited for it get their answer, or wait for their next
  /// key.
  void answer_waiters(const std::string& key) {
    last_answer_.reset();  // it is out of date
    if (!table_.get(key)) return;
    auto waiting = waiters_.extract(key);
    if (waiting.empty()) return;
    for (const uint64_t id : waiting.mapped()) {
      StoreSession& session = sessions_.at(id);
      try {
        if (park(id, session)) continue;
        const uint64_t number = session.parked->number;
        try {
          answer_wait(session);
        } catch (const MisuseError& error) {
          session.reply(number, StoreStatus::Misuse,
                        std::make_shared<const std::string>(error.what()));
        }
        send_and_listen(id, session);
      } catch (const std::exception&) {
        drop(id);
      }
    }
  }

  void drop(uint64_t id) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    unpark(id, found->second);
    sessions_.erase(found);
  }

  const Address address_;
  uint64_t next_id_ = kFirstSessionId;
  StoreTable table_;
  std::map<uint64_t, StoreSession> sessions_;
  std::unordered_map<std::string, std::vector<uint64_t>> waiters_;  ///< by the key they wait for
  std::string last_list_;                                           ///< the keys of the last wait
  StoreTable::Value last_answer_;  ///< its answer, while it is up to date
  Acceptor acceptor_;
  Epoll epoll_;
  Fd stop_;
  std::thread thread_;
};

StoreServer::StoreServer(const Address& bind, const Secret& secret, const std::string& job,
                         int world_size) {
  core::check(world_size > 0, "StoreServer: a world of {} ranks", world_size);
  loop_ = std::make_unique<Loop>(Listener(bind), secret, job, world_size);
}

StoreServer::~StoreServer() = default;

Address StoreServer::address() const {
  return loop_->address();
}

}  // namespace trireme::net
