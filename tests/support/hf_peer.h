#pragma once

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/command.h"
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

/// tests/e2e/hf_peer.py, which says what its commands are. It is started once and answers questions
/// in files of a folder, because transformers takes seconds to load:
///
///     here    0.args                     1.args
///     there           0.out, or 0.err              1.out, or 1.err
class HfPeer {
 public:
  /// Asks, and returns the answer.
  std::string ask(const std::vector<std::string>& args) {
    const std::string question = folder_ / std::to_string(asked_++);
    std::ofstream(question + ".new") << fmt::format("{}", fmt::join(args, "\n"));
    std::rename((question + ".new").c_str(), (question + ".args").c_str());
    const auto is_there = [&](const char* suffix) {
      return ::access((question + suffix).c_str(), F_OK) == 0;
    };
    const bool answered =
        eventually([&] { return is_there(".out") || is_there(".err"); }, kPatience);
    EXPECT_TRUE(answered) << "hf_peer.py does not answer";
    EXPECT_FALSE(is_there(".err")) << text_of(question + ".err");
    return text_of(question + ".out");
  }

 private:
  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const Scratch folder_;
  int asked_ = 0;
  Command process_{
      {python_with_torch(), TRIREME_SOURCE_DIR "/tests/e2e/hf_peer.py", folder_.path()},
      {.deadline = std::chrono::minutes(15)}};
};

inline std::string must_peer(const std::vector<std::string>& args) {
  static HfPeer peer;
  return peer.ask(args);
}

/// How many models hf_peer.py makes.
constexpr int kNumModelsOfTransformers = 11;

/// The folder of the models that transformers makes, made once.
inline std::string models_of_transformers() {
  static const Scratch scratch;
  static const std::string made = must_peer({"make", scratch / "hf"});
  return scratch / "hf";
}

}  // namespace trireme::test
