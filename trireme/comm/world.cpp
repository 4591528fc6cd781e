#include "trireme/comm/world.h"

#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "trireme/comm/bootstrap.h"
#include "trireme/comm/monitor.h"
#include "trireme/comm/segments.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"

namespace trireme::comm {

namespace {

/// How long to wait for a peer that was stopped while it worked in this rank's memory.
constexpr auto kUntouched = std::chrono::seconds(1);

/// How long a rank that leaves waits for the others to take what it sent them.
constexpr auto kDeliver = std::chrono::seconds(1);

Engine::Cores cores_for(const std::vector<Member>& members, int rank) {
  const int host = members[static_cast<std::size_t>(rank)].host_index;
  const auto here = std::count_if(members.begin(), members.end(),
                                  [&](const Member& member) { return member.host_index == host; });
  return here > static_cast<long>(std::thread::hardware_concurrency())
             ? Engine::Cores::Oversubscribed
             : Engine::Cores::OnePerRank;
}

}  // namespace

World::World(int rank, std::vector<Member> members, Transport transport, WorldOptions options)
    : rank_(rank),
      members_(std::move(members)),
      options_(std::move(options)),
      transport_(std::move(transport)),
      recorder_(rank, options_.record_dir),
      log_(rank, "world"),
      messenger_(
          *transport_.streams, rank, static_cast<int>(members_.size()),
          [this](uint64_t group,
                 uint64_t number) -> std::optional<std::pair<uint64_t, core::OpInfo>> {
            const auto lane = lanes_.find(group);
            if (lane == lanes_.end()) return std::nullopt;
            return lane->second->called(number);
          },
          [this](int left) { seat(left).state.store(static_cast<uint32_t>(SeatState::Left)); }),
      engine_(messenger_, *transport_.sleeper, *this, cores_for(members_, rank)) {
  seat(rank_).state.store(static_cast<uint32_t>(SeatState::Present));
  if (transport_.monitor) transport_.monitor->start(*this);
}

World::~World() {
  // Destroyed by an exception: the others must not take that for a normal end.
  if (std::uncaught_exceptions() > exceptions_) abandon();
  leave();
}

void World::leave() {
  if (std::exchange(gone_, true)) return;
  seat(rank_).state.store(static_cast<uint32_t>(SeatState::Left));
  if (transport_.monitor) transport_.monitor->leave();
  engine_.locked([&] {  // the helper still uses the streams
    for (int other = 0; other < size(); ++other) {
      if (other == rank_) continue;
      if (here(other))
        ring(seat(other));
      else
        messenger_.say_goodbye(other);
    }
    if (!failed()) transport_.streams->deliver(kDeliver);
  });
}

void World::took(int owner, int64_t bytes) {
  messenger_.traffic.received_bytes += bytes;
  auto& taken = transport_.page->taken(rank_, owner, size());
  taken.store(taken.load(std::memory_order_relaxed) + static_cast<uint64_t>(bytes),
              std::memory_order_relaxed);
}

Traffic World::traffic() {
  Traffic total = engine_.locked([&] { return messenger_.traffic; });
  for (int taker = 0; taker < size(); ++taker)
    total.sent_bytes += static_cast<int64_t>(
        transport_.page->taken(taker, rank_, size()).load(std::memory_order_relaxed));
  return total;
}

void World::add(Lane& lane) {
  engine_.locked([&] { lanes_[lane.id] = &lane; });
}

void World::remove(Lane& lane) {
  engine_.drop(lane);
  engine_.locked([&] { lanes_.erase(lane.id); });
}

std::string World::describe(int rank) const {
  const Member& who = member(rank);
  return fmt::format("rank {} (host {}, pid {})", rank, who.host, who.pid);
}

std::string World::doing(int rank) const {
  const std::string text = seat(rank).get_note();  // other hosts send it with their heartbeat
  return text.empty() ? text : (here(rank) ? " in " : ", a moment ago in ") + text;
}

void World::set_trace(std::shared_ptr<core::Trace> trace) {
  engine_.locked([&] { trace_ = std::move(trace); });
}

void World::fail(const Cause& cause) {
  const bool first = transport_.page->claim(rank_, cause);
  wake_all();
  if (first) log_.info("the world has failed: " + cause.text);
}

void World::wake_all() noexcept {
  for (int other = 0; other < size(); ++other) {
    if (here(other)) ring(seat(other));
  }
  transport_.sleeper->wake();
  if (transport_.monitor) transport_.monitor->spread();
}

void World::abort(const std::string& why) {
  if (!failed())
    fail({CauseKind::Aborted, rank_, fmt::format("{} aborted: {}", describe(rank_), why)});
}

void World::abandon() {
  if (!failed())
    fail({CauseKind::Error, rank_,
          describe(rank_) + " stopped because of an error of its own" + doing(rank_)});
}

bool World::has_left(int rank) const {
  return seat(rank).state.load() == static_cast<uint32_t>(SeatState::Left);
}

std::vector<int> World::left(const std::vector<int>& ranks) const {
  std::vector<int> gone;
  for (int rank : ranks) {
    // What it sent before it left may still be in flight.
    if (has_left(rank) && transport_.streams->ended(rank)) gone.push_back(rank);
  }
  return gone;
}

void World::report_left(const Task&, int rank) {
  fail({CauseKind::Left, rank,
        fmt::format("{} has left the job normally and will not take part", describe(rank))});
}

void World::report_timeout(const Task& task, const std::vector<int>& missing,
                           std::chrono::nanoseconds waited) {
  std::vector<std::string> who;
  for (int rank : missing) who.push_back(describe(rank) + doing(rank));
  std::string text =
      fmt::format("no answer from {} in {}", fmt::join(who, ", "), core::format_duration(waited));
  if (task.ordered)
    text += fmt::format(" (rank {} waited in #{} on '{}'; it last finished #{})", rank_,
                        task.number, task.lane->name, task.lane->last_finished);
  fail({CauseKind::Timeout, missing.size() == 1 ? missing.front() : -1, text});
}

void World::report_mismatch(const Mismatch& mismatch) {
  if (mismatch.expected_bytes != mismatch.sent_bytes) {
    fail({CauseKind::Mismatch, -1,
          fmt::format("{}: rank {} sends {} bytes to rank {}, which expects {}",
                      core::to_string(mismatch.mine.kind), mismatch.peer, mismatch.sent_bytes,
                      rank_, mismatch.expected_bytes)});
    return;
  }
  auto first = std::pair(rank_, mismatch.mine), second = std::pair(mismatch.peer, mismatch.theirs);
  if (first.first > second.first) std::swap(first, second);
  const std::string one = core::to_string(first.second), other = core::to_string(second.second);
  // Only where their tensors are is not part of the text.
  const char* hint = one == other ? "; one has its tensors on a GPU, the other has not" : "";
  fail({CauseKind::Mismatch, -1,
        fmt::format("the ranks called different operations: rank {}: {}, rank {}: {}{}",
                    first.first, one, second.first, other, hint)});
}

bool World::explained(int rank) const {
  return failed() || has_left(rank);
}

void World::report_closed(int rank) {
  // On a busy machine this may be known before the monitor has had its turn.
  if (here(rank) && wait_for_exit(member(rank).pid))
    return fail({CauseKind::Died, rank, describe(rank) + " died" + doing(rank)});
  fail({CauseKind::Died, rank,
        fmt::format("the connection to {} broke: it died, or the network between the hosts failed",
                    describe(rank))});
}

void World::report_broken(const char* what) noexcept {
  if (failed()) return;
  try {
    fail({CauseKind::Aborted, rank_, fmt::format("{} cannot go on: {}", describe(rank_), what)});
  } catch (const std::exception&) {  // no memory even for the message
    transport_.page->claim(rank_, {CauseKind::Aborted, rank_, "out of memory"});
    wake_all();
  }
}

void World::wait_until_untouched() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // see PeerMemoryAccess
  const bool threads = transport_.monitor == nullptr;   // threads neither die nor stop alone
  const auto until = std::chrono::steady_clock::now() + kUntouched;
  const auto gone = [&](int other) {
    return !threads &&
           (process_born(member(other).pid) == 0 || std::chrono::steady_clock::now() > until);
  };
  for (int other = 0; other < size(); ++other) {
    if (other == rank_ || !here(other)) continue;
    const auto& touches = seat(other).touches;
    for (int yields = 1; touches.load(std::memory_order_acquire) != 0; ++yields) {
      ::sched_yield();
      if (yields % 64 == 0 && gone(other)) break;
    }
  }
}

void World::raise(const Task& task) {
  raise(*task.lane, task.number, task.info);
}

void World::raise(const Lane& lane, uint64_t number, core::OpInfo info) {
  const Cause cause = transport_.page->cause();
  engine_.locked([&] { recorder_.write(cause.text); });
  // That rank is about to print its error and exit: let it be the first that the launcher sees
  // fail.
  if (cause.kind == CauseKind::Error && cause.rank != rank_ && here(cause.rank))
    wait_for_exit(member(cause.rank).pid);
  // Messages give ranks of the world, whatever group they are about.
  if (info.root >= 0)
    info.root = static_cast<int16_t>(lane.members[static_cast<std::size_t>(info.root)]);
  const std::string text = fmt::format("{} #{} on '{}', rank {}: {}", core::to_string(info), number,
                                       lane.name, rank_, cause.text);
  if (cause.kind == CauseKind::Timeout) throw TimeoutError(text);
  throw CommError(text);
}

void World::check(const Lane& lane, uint64_t number, const core::OpInfo& info) {
  if (failed()) raise(lane, number, info);
}

void World::started(Task& task) {
  task.record = recorder_.started(task.lane->name, task.number, task.info);
  if (trace_) task.started = core::Trace::Clock::now();  // small ops have no start time otherwise
}

void World::finished(const Task& task) {
  recorder_.finished(task.record);
  // One that began before the trace did has no beginning in it.
  if (trace_ && task.started != core::Trace::Clock::time_point{})
    trace_->add(core::Trace::Row::Ops,
                fmt::format("{} on '{}'", core::to_string(task.info), task.lane->name),
                task.started, core::Trace::Clock::now());
}

}  // namespace trireme::comm
