#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace trireme {

/// Base of the errors that a caller can act on. Misuse (a bad shape, a bad option) is not one of
/// them: that is core::check or TORCH_CHECK, and the fix is in the calling code.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A peer or the network failed. The world that it happened in is unusable from here on.
class CommError : public Error {
  using Error::Error;
};

/// An operation outlived its timeout; the message names the ranks that it waited for.
class TimeoutError : public CommError {
  using CommError::CommError;
};

/// A configuration, an environment variable or a command line that cannot be used as it is.
class ConfigError : public Error {
  using Error::Error;
};

/// A checkpoint could not be written, or what was read of one is damaged, missing or another thing
/// than was asked for. The message names the file, and the tensor where there is one.
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

/// The system's sentence for an errno value, e.g. "No such file or directory".
std::string errno_text(int errno_value);

}  // namespace core
}  // namespace trireme
