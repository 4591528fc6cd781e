#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace trireme {

/// Base of the errors that a caller can handle. Misuse (a bad shape, a bad option) is not one of
/// them: core::check or TORCH_CHECK reports it, and the fix is in the calling code.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A peer or the network failed. Its world is unusable from then on.
class CommError : public Error {
  using Error::Error;
};

/// An operation took longer than its timeout; the message names the ranks that it waited for.
class TimeoutError : public CommError {
  using CommError::CommError;
};

/// A configuration, an environment variable or a command line is invalid.
class ConfigError : public Error {
  using Error::Error;
};

/// A checkpoint could not be written, or is damaged, incomplete or not the one that was asked for.
/// The message names the file, and the tensor if there is one.
class CheckpointError : public Error {
  using Error::Error;
};

/// The caller's mistake, in layers without torch (elsewhere TORCH_CHECK throws c10::Error).
class MisuseError : public std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

namespace core {

/// Throws MisuseError with the formatted sentence unless `ok`.
template <class... Args>
void check(bool ok, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!ok) [[unlikely]]
    throw MisuseError(fmt::format(sentence, std::forward<Args>(args)...));
}

/// The system's message for an errno value, e.g. "No such file or directory".
std::string errno_text(int errno_value);

}  // namespace core
}  // namespace trireme
