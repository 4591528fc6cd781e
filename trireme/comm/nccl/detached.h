#pragma once

#include <chrono>
#include <functional>

namespace trireme::comm::nccl {

/// Runs `body` on a thread that nobody joins: NCCL waits for peers in it, which may never come, and
/// cannot be stopped. Whatever the thread needs belongs to `body`. What that throws is lost.
void run_detached(std::function<void()> body);

/// The same, and returns when it is over, but after at most `longest`.
void run_for_at_most(std::chrono::nanoseconds longest, std::function<void()> body);

/// Waits until these threads are over, for a second at most: a failed peer ends, too, which lets
/// most of them return. One that is left must not live to see NCCL's static objects destroyed: if
/// there still is one then, exit() ends the process without destroying any.
void settle_detached();

}  // namespace trireme::comm::nccl
