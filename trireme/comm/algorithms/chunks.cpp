#include "trireme/comm/algorithms/rank_view.h"

namespace trireme::comm {

namespace {

using Kind = Instruction::Kind;
using Memory = Operand::Memory;

/// The number of messages that carry a range.
int chunks_of(Interval range, Empty empty) {
  const auto chunks = static_cast<int>((range.size() + kChunkBytes - 1) / kChunkBytes);
  return empty == Empty::Send ? std::max(chunks, 1) : chunks;
}

}  // namespace

void send_chunks(CollectiveProgram& program, int peer, Operand::Memory memory, Interval range,
                 int phase, const std::vector<int>& after, Empty empty) {
  for (int chunk = 0; chunk < chunks_of(range, empty); ++chunk) {
    const int64_t begin = range.begin + chunk * kChunkBytes;
    Instruction send{.kind = Kind::Send,
                     .peer = peer,
                     .total = range.size(),
                     .label = 2 * chunk + phase,
                     .target = {memory, begin, std::min(kChunkBytes, range.end - begin)}};
    if (!after.empty()) send.after = {after[static_cast<std::size_t>(chunk)]};
    program.add(std::move(send));
  }
}

void recv_chunks(CollectiveProgram& program, int peer, Interval range, int phase, Empty empty) {
  for (int chunk = 0; chunk < chunks_of(range, empty); ++chunk) {
    const int64_t begin = range.begin + chunk * kChunkBytes;
    program.add({.kind = Kind::Recv,
                 .peer = peer,
                 .total = range.size(),
                 .label = 2 * chunk + phase,
                 .target = {Memory::Out, begin, std::min(kChunkBytes, range.end - begin)}});
  }
}

}  // namespace trireme::comm
