#pragma once

#include <concepts>
#include <exception>

namespace trireme {

/// Prints what went wrong to stderr, in one sentence, and returns the exit code that scripts rely
/// on: 2 for a ConfigError, 1 for any other error.
int report(const std::exception& error);

/// Runs the body of `main`, and reports what it throws instead of aborting.
///
///   int main() {
///     return trireme::guard([] { const auto world = trireme::init(); ... });
///   }
template <class Body>
int guard(Body&& body) {
  try {
    if constexpr (std::same_as<decltype(body()), void>) {
      body();
      return 0;
    } else {
      return body();
    }
  } catch (const std::exception& error) {
    return report(error);
  }
}

}  // namespace trireme
