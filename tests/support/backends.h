#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "trireme/comm/communicator.h"

namespace trireme::test {

/// One way of carrying bytes, as the conformance suite sees it.
struct BackendUnderTest {
  std::string name;
  bool threads = false;         ///< ranks are threads of this process, else processes
  std::vector<int> sizes = {};  ///< of the worlds that broad sweeps run on
  bool gpus = false;            ///< ops run on GPUs, over NCCL (support/through_gpu.h)
};
void PrintTo(const BackendUnderTest& backend, std::ostream* out);

/// Ranks as threads: for broad sweeps.
inline const BackendUnderTest kThreads{.name = "local", .threads = true, .sizes = {}};

/// A later backend joins the whole suite with one line in here.
std::vector<BackendUnderTest> all_backends();
/// And NCCL, where there is a GPU.
std::vector<BackendUnderTest> conforming_backends();

/// Joins the world of that name, together with the other ranks. Every name is another world.
using Join = std::function<comm::Communicator(const std::string& name)>;

struct WorldOptions {
  std::chrono::milliseconds deadline = std::chrono::seconds(90);
  /// Of every op: a hang becomes an error that says who was missing, well before the deadline.
  std::chrono::milliseconds op_timeout = std::chrono::seconds(15);
};

/// Runs `body` on `size` ranks of a world over the backend, and fails the current test if any of
/// them fails an EXPECT, throws, or misses the deadline. Processes load libtorch each time: put
/// many cases into one call.
void run_world(const BackendUnderTest& backend, int size,
               const std::function<void(const comm::Communicator& world)>& body,
               WorldOptions options = {});

/// The same for bodies that make worlds of their own, several or none.
void run_worlds(const BackendUnderTest& backend, int size,
                const std::function<void(int rank, const Join& join)>& body,
                WorldOptions options = {});

/// A test that runs on every backend: TEST_P(Suite, Name) { run_world(GetParam(), ...); }
class OnEveryBackend : public ::testing::TestWithParam<BackendUnderTest> {};

inline std::string name_of(const ::testing::TestParamInfo<BackendUnderTest>& info) {
  return info.param.name;
}

#define ON_EVERY_BACKEND(Suite)                                                                   \
  class Suite : public ::trireme::test::OnEveryBackend {};                                        \
  INSTANTIATE_TEST_SUITE_P(Backends, Suite, ::testing::ValuesIn(::trireme::test::all_backends()), \
                           ::trireme::test::name_of)

/// The same, and on NCCL where there is a GPU.
#define ON_EVERY_BACKEND_AND_GPUS(Suite)                                                \
  class Suite : public ::trireme::test::OnEveryBackend {};                              \
  INSTANTIATE_TEST_SUITE_P(Backends, Suite,                                             \
                           ::testing::ValuesIn(::trireme::test::conforming_backends()), \
                           ::trireme::test::name_of)

/// For a test of something that NCCL does in its own way.
#define NOT_ON_GPUS(why) \
  if (GetParam().gpus) GTEST_SKIP() << "NCCL " << (why)

}  // namespace trireme::test
