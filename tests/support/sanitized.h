#pragma once

namespace trireme::test {

/// A sanitizer's own memory grows with everything that is touched: what a process takes says
/// nothing.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace trireme::test
