#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/scratch.h"
#include "support/training.h"

namespace trireme::test {

/// Runs a command that must succeed; returns what it prints.
inline std::string must_run(std::vector<std::string> argv) {
  const auto result = run_patiently(std::move(argv));
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  return result.out;
}

inline std::string must_ckpt(std::vector<std::string> args) {
  args.insert(args.begin(), {kTrireme, "ckpt"});
  return must_run(std::move(args));
}

/// tests/e2e/hf_peer.py, which says what its commands are.
inline std::string must_peer(std::vector<std::string> args) {
  args.insert(args.begin(),
              {python_with_torch(), TRIREME_SOURCE_DIR "/tests/e2e/hf_peer.py"});
  return must_run(std::move(args));
}

/// The folder of the models that transformers makes. Made once: starting it takes seconds.
inline std::string models_of_transformers() {
  static const Scratch scratch;
  static const std::string made = must_peer({"make", scratch / "hf"});
  return scratch / "hf";
}

}  // namespace trireme::test
