#pragma once

#include <cstdint>

namespace trireme::ps {

/// Mistakes that tests put in on purpose, to see that each invariant can fail. Programs leave it at
/// None.
enum class Plant : uint8_t {
  None,
  AckBeforeChain,   ///< the head acknowledges a push that its successors do not have yet
  ForgetApplied,    ///< the ids already applied do not move with a range
  SameEpoch,        ///< a chain changes and its epoch does not
  DirtyRead,        ///< the head answers a pull before its successors confirm what it read
  LooseBound,       ///< a pull waits for one clock less than it should
  AnyReply,         ///< a client takes a late reply to an earlier pull for the one it waits for
  ReadBeforeWrite,  ///< a push-pull is read before its push is in
  DoneTooEarly,     ///< the scheduler counts a task as done when it is handed out again
  SendBeforeSync,   ///< the manager sends what it decided before its log is on disk
  ApplyEarly        ///< a range in lockstep applies a clock that other ranges do not have whole
};

}  // namespace trireme::ps
