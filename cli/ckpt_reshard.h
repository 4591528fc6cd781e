#pragma once

#include <string>

namespace trireme::cli {

/// Writes the checkpoint `from` anew as `to`, as so many ranks would have; says how far it is, and
/// at the end what there is. After Ctrl-C, SIGTERM or SIGHUP nothing of `to` is left. Returns the
/// exit code.
int reshard_checkpoint(const std::string& from, const std::string& to, int ranks);

}  // namespace trireme::cli
