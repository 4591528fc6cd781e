#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <set>
#include <string>

namespace trireme::test {

/// What one rank of a multi-process test is given.
struct Rank {
  int rank = 0;
  int size = 1;
  std::filesystem::path scratch;  ///< shared by the ranks of one call; rendezvous files go here
};

struct RunOptions {
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  std::set<int> dies = {};  ///< ranks that must be killed by a signal, in failure tests
  std::set<int> stopped =
      {};  ///< ranks that stop themselves, and are killed when all others are done
};

/// Runs `body` once per rank, each in a fresh process, and fails the current test if any rank fails
/// an EXPECT, throws, crashes, misses the deadline, or never ran the body.
///
/// The ranks are new copies of this test binary told to run only the current test (exec, not fork:
/// a forked child of a process that has touched OpenMP or a thread pool is not usable). The body
/// may therefore capture locals: each rank rebuilds them by running the test up to this call.
void run_ranks(int size, const std::function<void(const Rank&)>& body, RunOptions options = {});

}  // namespace trireme::test
