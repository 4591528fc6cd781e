#include "trireme/comm/program_run.h"

#include <algorithm>

#include "trireme/comm/kernels.h"

namespace trireme::comm {

namespace {

using Kind = Instruction::Kind;

bool is_transfer(const Instruction& instruction) {
  return instruction.kind == Kind::Send || instruction.kind == Kind::Recv;
}

}  // namespace

ProgramRun::ProgramRun(const LoweredOp& op, CollectiveProgram program, Messenger& messenger,
                       const Lane& lane, uint64_t number, uint64_t fingerprint)
    : op_(op),
      program_(std::move(program)),
      messenger_(messenger),
      lane_(lane),
      scratch_(messenger.take_scratch(program_.scratch_bytes)),
      transfers_(program_.instructions.size()),
      blocked_(program_.instructions.size()),
      unblocks_(program_.instructions.size()),
      steps_(program_.instructions.size(), 0),
      left_(program_.instructions.size()) {
  messenger_.check_early(lane.id, number, fingerprint, op.info);
  moving_.reserve(program_.instructions.size());
  try {
    post_receives(number, fingerprint);
    begin_all();
  } catch (...) {
    for (std::size_t i : moving_) messenger_.cancel(transfers_[i]);  // no destructor will do it
    throw;
  }
}

/// Posts every receive at once. A message whose memory is still in use stays in the stream, which
/// holds back a sender that is ahead.
void ProgramRun::post_receives(uint64_t number, uint64_t fingerprint) {
  for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
    const Instruction& instruction = program_.instructions[i];
    blocked_[i] = static_cast<int>(instruction.after.size());
    for (int before : instruction.after)
      unblocks_[static_cast<std::size_t>(before)].push_back(static_cast<int>(i));
    if (!is_transfer(instruction)) continue;
    Transfer& transfer = transfers_[i];
    transfer.peer = lane_.members[static_cast<std::size_t>(instruction.peer)];
    transfer.data = at(instruction.target);
    transfer.header.group = lane_.id;
    transfer.header.key = collective_key(number, instruction.label);
    transfer.header.fingerprint = fingerprint;
    transfer.header.bytes = static_cast<uint64_t>(instruction.target.bytes);
    transfer.header.total = static_cast<uint64_t>(instruction.total);
    transfer.header.info = op_.info;
    if (instruction.kind == Kind::Recv) {
      transfer.ready = blocked_[i] == 0;
      messenger_.receive(transfer);
      moving_.push_back(i);
    }
  }
}

/// Begins all instructions that wait for nothing. Finds them first: one that finishes at once
/// begins those that waited for it.
void ProgramRun::begin_all() {
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
    if (blocked_[i] == 0 && program_.instructions[i].kind != Kind::Recv) ready.push_back(i);
  }
  for (std::size_t i : ready) begin(i);
}

ProgramRun::~ProgramRun() {
  for (std::size_t i : moving_) messenger_.cancel(transfers_[i]);
  messenger_.give_scratch(std::move(scratch_));
}

std::byte* ProgramRun::at(const Operand& place) {
  switch (place.memory) {
    case Operand::Memory::In: return op_.in + place.begin;
    case Operand::Memory::Out: return op_.out + place.begin;
    case Operand::Memory::Scratch: return scratch_.data() + place.begin;
  }
  return nullptr;
}

/// Begins an instruction; all that it waits for has finished.
void ProgramRun::begin(std::size_t index) {
  const Instruction& instruction = program_.instructions[index];
  Transfer& transfer = transfers_[index];
  if (instruction.kind == Kind::Recv) {
    messenger_.make_ready(transfer);
  } else if (instruction.kind == Kind::Send) {
    transfer.header.step = steps_[index] + 1;
    messenger_.send(transfer);
    moving_.push_back(index);
  } else {
    compute(instruction);
    finish(index);
  }
}

void ProgramRun::compute(const Instruction& instruction) {
  const Kernels& math = kernels();
  const core::OpInfo& info = op_.info;
  void* to = at(instruction.target);
  const int64_t count = info.item_bytes > 0 ? instruction.target.bytes / info.item_bytes : 0;
  switch (instruction.kind) {
    case Kind::Reduce: {
      std::vector<const void*> from;
      for (const Operand& source : instruction.sources) from.push_back(at(source));
      math.reduce(info.dtype, info.reduce, &to, 1, from.data(), static_cast<int>(from.size()),
                  count);
      break;
    }
    case Kind::Fold:
      math.fold(info.dtype, info.reduce, to, at(instruction.sources.front()), count);
      break;
    case Kind::Divide: math.divide(info.dtype, to, lane_.size(), count); break;
    case Kind::Copy: {
      const void* from = at(instruction.sources.front());
      if (from != to && instruction.target.bytes > 0) math.copy(to, from, instruction.target.bytes);
      break;
    }
    default: break;
  }
}

void ProgramRun::finish(std::size_t index) {
  --left_;
  const Instruction& instruction = program_.instructions[index];
  if (instruction.kind == Kind::Recv) steps_[index] = transfers_[index].step;
  for (int next : unblocks_[index]) {
    const auto i = static_cast<std::size_t>(next);
    // After a send only its memory is free; what follows does not depend on the data that was sent.
    if (instruction.kind != Kind::Send) steps_[i] = std::max(steps_[i], steps_[index]);
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

/// The ranks with pending transfers: those that have sent nothing yet, and those that have sent
/// something.
std::pair<std::set<int>, std::set<int>> ProgramRun::pending() const {
  std::set<int> came, silent, known;
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    if (program_.instructions[i].kind == Kind::Recv && transfers_[i].done)
      came.insert(transfers_[i].peer);
  }
  for (std::size_t i : moving_) {
    if (!transfers_[i].done)
      (came.contains(transfers_[i].peer) ? known : silent).insert(transfers_[i].peer);
  }
  return {silent, known};
}

std::vector<int> ProgramRun::missing() const {
  // A rank that has sent something has joined in; if it sends no more, another rank holds it up.
  const auto [silent, known] = pending();
  const auto& ranks = silent.empty() ? known : silent;
  return {ranks.begin(), ranks.end()};
}

bool ProgramRun::certain() const {
  return !pending().first.empty();
}

}  // namespace trireme::comm
