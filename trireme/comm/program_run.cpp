#include "trireme/comm/program_run.h"

#include <algorithm>

#include "trireme/comm/kernels.h"

namespace trireme::comm {

namespace {

using Kind = Action::Kind;

bool is_transfer(const Action& action) {
  return action.kind == Kind::Send || action.kind == Kind::Recv;
}

}  // namespace

ProgramRun::ProgramRun(const Job& job, Program program, Messenger& messenger, const Lane& lane,
                       uint64_t number, uint64_t fingerprint)
    : job_(job),
      program_(std::move(program)),
      messenger_(messenger),
      lane_(lane),
      scratch_(messenger.take_scratch(program_.scratch_bytes)),
      transfers_(program_.actions.size()),
      blocked_(program_.actions.size()),
      unblocks_(program_.actions.size()),
      steps_(program_.actions.size(), 0),
      left_(program_.actions.size()) {
  messenger_.check_early(lane.id, number, fingerprint, job.info);
  moving_.reserve(program_.actions.size());
  try {
    post_receives(number, fingerprint);
    begin_all();
  } catch (...) {
    for (std::size_t i : moving_) messenger_.cancel(transfers_[i]);  // nobody else knows of them
    throw;
  }
}

/// Every receive is posted at once: a message that finds its memory still in use stays in the
/// stream, which is what holds back a rank that is ahead.
void ProgramRun::post_receives(uint64_t number, uint64_t fingerprint) {
  for (std::size_t i = 0; i < program_.actions.size(); ++i) {
    const Action& action = program_.actions[i];
    blocked_[i] = static_cast<int>(action.after.size());
    for (int before : action.after)
      unblocks_[static_cast<std::size_t>(before)].push_back(static_cast<int>(i));
    if (!is_transfer(action)) continue;
    Transfer& transfer = transfers_[i];
    transfer.peer = lane_.members[static_cast<std::size_t>(action.peer)];
    transfer.data = at(action.place);
    transfer.header.group = lane_.id;
    transfer.header.key = collective_key(number, action.label);
    transfer.header.fingerprint = fingerprint;
    transfer.header.bytes = static_cast<uint64_t>(action.place.bytes);
    transfer.header.total = static_cast<uint64_t>(action.total);
    transfer.header.info = job_.info;
    if (action.kind == Kind::Recv) {
      transfer.ready = blocked_[i] == 0;
      messenger_.receive(transfer);
      moving_.push_back(i);
    }
  }
}

/// First find, then begin: an action that finishes at once begins what it unblocks itself.
void ProgramRun::begin_all() {
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < program_.actions.size(); ++i) {
    if (blocked_[i] == 0 && program_.actions[i].kind != Kind::Recv) ready.push_back(i);
  }
  for (std::size_t i : ready) begin(i);
}

ProgramRun::~ProgramRun() {
  for (std::size_t i : moving_) messenger_.cancel(transfers_[i]);
  messenger_.give_scratch(std::move(scratch_));
}

std::byte* ProgramRun::at(const Place& place) {
  switch (place.memory) {
    case Place::Memory::In: return job_.in + place.begin;
    case Place::Memory::Out: return job_.out + place.begin;
    case Place::Memory::Scratch: return scratch_.data() + place.begin;
  }
  return nullptr;
}

/// Everything it comes after has finished.
void ProgramRun::begin(std::size_t index) {
  const Action& action = program_.actions[index];
  Transfer& transfer = transfers_[index];
  if (action.kind == Kind::Recv) {
    messenger_.make_ready(transfer);
  } else if (action.kind == Kind::Send) {
    transfer.header.step = steps_[index] + 1;
    messenger_.send(transfer);
    moving_.push_back(index);
  } else {
    compute(action);
    finish(index);
  }
}

void ProgramRun::compute(const Action& action) {
  const Kernels& math = kernels();
  const core::OpInfo& info = job_.info;
  void* to = at(action.place);
  const int64_t count = info.item_bytes > 0 ? action.place.bytes / info.item_bytes : 0;
  switch (action.kind) {
    case Kind::Reduce: {
      std::vector<const void*> from;
      for (const Place& source : action.sources) from.push_back(at(source));
      math.reduce(info.dtype, info.reduce, &to, 1, from.data(), static_cast<int>(from.size()),
                  count);
      break;
    }
    case Kind::Fold:
      math.fold(info.dtype, info.reduce, to, at(action.sources.front()), count);
      break;
    case Kind::Divide: math.divide(info.dtype, to, lane_.size(), count); break;
    case Kind::Copy: {
      const void* from = at(action.sources.front());
      if (from != to && action.place.bytes > 0) math.copy(to, from, action.place.bytes);
      break;
    }
    default: break;
  }
}

void ProgramRun::finish(std::size_t index) {
  --left_;
  const Action& action = program_.actions[index];
  if (action.kind == Kind::Recv) steps_[index] = transfers_[index].step;
  for (int next : unblocks_[index]) {
    const auto i = static_cast<std::size_t>(next);
    // A send only frees memory; what comes after it does not depend on what was sent.
    if (action.kind != Kind::Send) steps_[i] = std::max(steps_[i], steps_[index]);
    if (--blocked_[i] == 0) begin(i);
  }
}

Task::Step ProgramRun::step() {
  bool moved = false;
  for (std::size_t k = 0; k < moving_.size();) {
    const std::size_t index = moving_[k];
    if (!transfers_[index].done) {
      ++k;
      continue;
    }
    moving_[k] = moving_.back();
    moving_.pop_back();
    finish(index);
    moved = true;
  }
  if (left_ == 0) return Task::Step::Done;
  return moved ? Task::Step::Moved : Task::Step::Stuck;
}

/// Ranks of which something is pending: those that have sent nothing yet, and those that have.
std::pair<std::set<int>, std::set<int>> ProgramRun::pending() const {
  std::set<int> came, silent, known;
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    if (program_.actions[i].kind == Kind::Recv && transfers_[i].done)
      came.insert(transfers_[i].peer);
  }
  for (std::size_t i : moving_) {
    if (!transfers_[i].done)
      (came.contains(transfers_[i].peer) ? known : silent).insert(transfers_[i].peer);
  }
  return {silent, known};
}

std::vector<int> ProgramRun::missing() const {
  // A rank that has sent anything has come; that it cannot send more is another's fault.
  const auto [silent, known] = pending();
  const auto& ranks = silent.empty() ? known : silent;
  return {ranks.begin(), ranks.end()};
}

bool ProgramRun::certain() const {
  return !pending().first.empty();
}

}  // namespace trireme::comm
