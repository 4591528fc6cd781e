#include "trireme/ps/client.h"

#include <thread>

#include "trireme/core/error.h"
#include "trireme/ps/data_order.h"

namespace trireme::ps {

namespace {

constexpr std::chrono::milliseconds kAskPause{10};
constexpr std::chrono::seconds kProgressAfter{5};

std::exception_ptr lost() {
  return std::make_exception_ptr(
      LifeLost("the manager has ended this worker's life and hands its work out again; ask for "
               "work"));
}

NodeOptions with_arena(NodeOptions options, const std::shared_ptr<Arena>& arena, uint32_t process) {
  options.connections.me = {{Role::Worker, process}, 0};
  options.connections.arena = arena;
  return options;
}

}  // namespace

Client::Client(NodeOptions options, const JobConfig& job, uint32_t process)
    : job_(job), note_(options.note), thread_(with_arena(std::move(options), arena_, process)) {
  thread_.start([&, process](Environment& environment) {
    auto made = std::make_unique<ClientNode>(process, job, environment);
    made->use_memory(arena_);
    made->on_end = [this] { lose_life(); };
    return made;
  });
}

void Client::lose_life() {
  ++lives_lost_;
  for (const auto& [number, state] : std::exchange(waiting_, {})) {
    state->done = true;
    state->error = lost();
  }
}

Client::Pending Client::start(Operation operation) {
  Pending pending;
  pending.state_ = std::make_shared<Pending::State>();
  std::exception_ptr misuse;
  thread_.call([&](Node& node) {
    auto& state = *pending.state_;
    if (!own(node).may_start()) {
      state.done = true;
      state.error = lost();
      return;
    }
    const uint64_t number = next_operation_++;
    waiting_[number] = pending.state_;
    try {
      own(node).start(std::move(operation), [this, number](Result result) {
        const auto found = waiting_.extract(number).mapped();
        found->done = true;
        if (!result.error.empty()) found->error = std::make_exception_ptr(CommError(result.error));
        found->result = std::move(result);
      });
    } catch (const MisuseError&) {  // of this call: the node goes on
      waiting_.erase(number);
      misuse = std::current_exception();
    }
  });
  if (misuse) std::rethrow_exception(misuse);
  return pending;
}

void Client::wait_with_progress(const std::function<bool()>& done) {
  while (!thread_.wait(done, net::Clock::now() + kProgressAfter)) {
    std::string line;
    thread_.call([&](Node& node) { line = own(node).waiting_for(); });
    if (!line.empty()) note_(line);
  }
}

Client::Result Client::wait(const Pending& pending) {
  Pending::State& state = *pending.state_;
  wait_with_progress([&] { return state.done; });
  if (state.error) std::rethrow_exception(state.error);
  return std::move(state.result);
}

void Client::has_kept(TableId table, const void* keeper,
                      const std::vector<ClientNode::PulledBlock>& blocks) {
  thread_.call([&](Node& node) { own(node).has_kept(table, keeper, blocks); });
}

/// Asks once; nothing if this life has not begun yet.
std::optional<TaskReply> Client::ask() {
  // The answer may come when nobody waits for it any more.
  const auto reply = std::make_shared<std::optional<TaskReply>>();
  bool asked = false;
  uint64_t lost_before = 0;
  thread_.call([&](Node& node) {
    if (!own(node).has_begun()) return;
    asked = true;
    lost_before = lives_lost_;
    // Work of an earlier life is done by whoever has it now: a return to a snapshot may have undone
    // what this worker did of it.
    const bool is_own = done_ && done_->life == node.life();
    own(node).ask_task(is_own ? std::optional(done_->task) : std::nullopt,
                       [reply](const TaskReply& given) { *reply = given; });
  });
  if (!asked) return std::nullopt;
  wait_with_progress([&] { return reply->has_value() || lives_lost_ != lost_before; });
  done_.reset();
  if (!*reply) std::rethrow_exception(lost());
  return *reply;
}

std::optional<Client::Work> Client::next() {
  if (done_) finish();  // a report that is lost with this process belongs to work that is not done
  for (;;) {
    const auto reply = ask();
    if (reply && reply->answer == Answer::Finished) {
      end_clock_ = reply->clock;
      return std::nullopt;
    }
    if (reply && reply->answer == Answer::Work)
      return Work{.task = reply->task,
                  .batches = batches_of(job_, reply->task),
                  .clock = reply->clock,
                  .view_version = reply->view_version,
                  .life = reply->life};
    thread_.wait([] { return false; }, net::Clock::now() + kAskPause);
  }
}

void Client::report(Batch batch, std::string text) {
  thread_.call([&](Node& node) {
    if (own(node).may_start()) own(node).report(batch, std::move(text));
  });
}

void Client::finish() {
  size_t left = 1;
  thread_.call([&](Node& node) { left = own(node).reports_in_flight(); });
  if (left == 0) return;
  ClientNode* node = nullptr;
  thread_.call([&](Node& one) { node = &own(one); });
  wait_with_progress([&] { return node->reports_in_flight() == 0; });
}

void Client::follow(Life life, const View& view) {
  thread_.call([&](Node& node) { own(node).follow(life, view); });
}

View Client::view() {
  View view;
  thread_.call([&](Node& node) { view = node.view(); });
  return view;
}

}  // namespace trireme::ps
