#include "trireme/ps/session.h"

#include <thread>

#include "trireme/core/error.h"
#include "trireme/ps/data_order.h"

namespace trireme::ps {

namespace {

constexpr std::chrono::milliseconds kAskPause{10};

std::exception_ptr lost() {
  return std::make_exception_ptr(
      LifeLost("the manager took this worker for dead and gave its work to others; ask for work "
               "again"));
}

}  // namespace

Session::Session(NodeProcess::Options options, const JobConfig& job, uint32_t worker)
    : job_(job), process_(std::move(options), [&, worker](Environment& environment) {
        auto made = std::make_unique<Client>(worker, job, environment);
        made->on_begin = [this] { lives_ = true; };
        made->on_end = [this] { lose_life(); };
        return made;
      }) {}

void Session::lose_life() {
  lives_ = false;
  ++lives_lost_;
  for (auto& [number, promise] : std::exchange(waiting_, {})) promise.set_exception(lost());
  if (asking_) asking_->set_exception(lost());
  asking_.reset();
}

std::future<Client::Result> Session::start(Client::Operation operation) {
  std::promise<Client::Result> promise;
  auto result = promise.get_future();
  process_.run([&](Node& node) {
    if (!lives_) return promise.set_exception(lost());
    const uint64_t number = next_operation_++;
    waiting_.emplace(number, std::move(promise));
    try {
      client(node).start(std::move(operation), [this, number](const Client::Result& given) {
        auto found = waiting_.extract(number);
        if (given.error.empty())
          found.mapped().set_value(given);
        else
          found.mapped().set_exception(std::make_exception_ptr(CommError(given.error)));
      });
    } catch (const MisuseError&) {  // of this call: the node goes on
      waiting_.extract(number).mapped().set_exception(std::current_exception());
    }
  });
  return result;
}

/// Asks once; nothing if this life has not begun yet.
std::optional<TaskReply> Session::ask() {
  std::promise<TaskReply> promise;
  auto reply = promise.get_future();
  bool asked = false;
  process_.run([&](Node& node) {
    if (!lives_) return;
    asked = true;
    asking_ = std::move(promise);
    client(node).ask_task(done_, [this](const TaskReply& given) {
      asking_->set_value(given);
      asking_.reset();
    });
  });
  if (!asked) return std::nullopt;
  try {
    const TaskReply given = reply.get();
    done_.reset();
    return given;
  } catch (const LifeLost&) {
    done_.reset();  // the work belongs to the life
    throw;
  }
}

std::optional<Session::Work> Session::next() {
  for (;;) {
    const auto reply = ask();
    if (reply && reply->answer == Answer::Finished) return std::nullopt;
    if (reply && reply->answer == Answer::Work)
      return Work{.task = reply->task,
                  .batches = batches_of(job_, reply->task),
                  .clock = reply->clock,
                  .view_version = reply->view_version};
    std::this_thread::sleep_for(kAskPause);
  }
}

}  // namespace trireme::ps
