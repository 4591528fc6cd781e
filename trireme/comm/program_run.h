#pragma once

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "trireme/comm/lane.h"
#include "trireme/comm/messenger.h"
#include "trireme/comm/program.h"

namespace trireme::comm {

/// Runs one rank's program of a collective over the messenger.
class ProgramRun {
 public:
  ProgramRun(const LoweredOp& op, CollectiveProgram program, Messenger& messenger, const Lane& lane,
             uint64_t number, uint64_t fingerprint);
  ~ProgramRun();
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;

  Task::Step step();

  /// The ranks (in the world) that have not yet sent, or not yet taken, all they should.
  std::vector<int> missing() const;
  bool certain() const;

 private:
  std::pair<std::set<int>, std::set<int>> pending() const;
  void post_receives(uint64_t number, uint64_t fingerprint);
  void begin_all();
  void begin(std::size_t index);
  void compute(const Instruction& instruction);
  void finish(std::size_t index);
  std::byte* at(const Operand& place);

  const LoweredOp& op_;
  CollectiveProgram program_;
  Messenger& messenger_;
  const Lane& lane_;
  std::vector<std::byte> scratch_;
  std::vector<Transfer> transfers_;         ///< by instruction; unused for arithmetic
  std::vector<int> blocked_;                ///< by instruction: how many it still waits for
  std::vector<std::vector<int>> unblocks_;  ///< by instruction: those that wait for it
  std::vector<uint32_t> steps_;             ///< by instruction: transfers in the chain up to it
  std::vector<std::size_t> moving_;         ///< transfers in flight
  std::size_t left_;
};

}  // namespace trireme::comm
