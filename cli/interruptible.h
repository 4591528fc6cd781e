#pragma once

#include <functional>
#include <string>

namespace trireme::cli {

/// What a long write says of its progress: called often, and asks for the text only where it is
/// shown.
using Tell = std::function<void(const std::function<std::string()>& text)>;

/// Runs `write`, which makes the folder `out` appear whole or not at all. Ctrl-C, SIGTERM and
/// SIGHUP end it at its next `tell`, by an exception. Returns 0, or 128 + the signal.
int write_interruptibly(const std::string& speaker, const std::string& out,
                        const std::function<void(const Tell&)>& write);

}  // namespace trireme::cli
