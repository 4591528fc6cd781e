#pragma once

#include <string>
#include <string_view>

#include "trireme/launch/attempt.h"

namespace trireme::launch {

/// "rank 3 (pid 8812 on a) was killed by SIGSEGV", "worker 1 (pid 8812) exited with code 7".
std::string sentence(const Failure& failure);

/// The sentence, and the last lines that the rank wrote.
std::string report(const Failure& failure, std::string_view speaker);

}  // namespace trireme::launch
