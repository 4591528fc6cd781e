#pragma once

#include <string>

namespace trireme::cli {

/// Writes the checkpoint `from` anew as `to`, as so many ranks would have; says how far it is on a
/// terminal, and at the end what there is.
void reshard_checkpoint(const std::string& from, const std::string& to, int ranks);

}  // namespace trireme::cli
