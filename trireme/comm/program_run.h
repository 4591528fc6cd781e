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
  ProgramRun(const Job& job, Program program, Messenger& messenger, const Lane& lane,
             uint64_t number, uint64_t fingerprint);
  ~ProgramRun();
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;

  Task::Step step();

  /// Ranks (in the world) that still owe something, or have not taken what they are owed.
  std::vector<int> missing() const;
  bool certain() const;

 private:
  std::pair<std::set<int>, std::set<int>> pending() const;
  void post_receives(uint64_t number, uint64_t fingerprint);
  void begin_all();
  void begin(std::size_t index);
  void compute(const Action& action);
  void finish(std::size_t index);
  std::byte* at(const Place& place);

  const Job& job_;
  Program program_;
  Messenger& messenger_;
  const Lane& lane_;
  std::vector<std::byte> scratch_;
  std::vector<Transfer> transfers_;         ///< by action; unused for arithmetic
  std::vector<int> blocked_;                ///< by action: how many it still comes after
  std::vector<std::vector<int>> unblocks_;  ///< by action: who comes after it
  std::vector<uint32_t> steps_;             ///< by action: transfers in the chain up to it
  std::vector<std::size_t> moving_;         ///< transfers that are under way
  std::size_t left_;
};

}  // namespace trireme::comm
