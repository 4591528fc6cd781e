#pragma once

#include <string>

namespace trireme::cli {

/// Rewrites the checkpoint `from` as `to`, as `ranks` ranks would have saved it. Prints its
/// progress, and a summary at the end. After Ctrl-C, SIGTERM or SIGHUP nothing of `to` is left.
/// Returns the exit code.
int reshard_checkpoint(const std::string& from, const std::string& to, int ranks);

}  // namespace trireme::cli
