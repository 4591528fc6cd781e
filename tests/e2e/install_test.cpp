// What a user of the library does: install it, find_package it, build ten lines, run them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "support/command.h"
#include "support/curves.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

CommandResult must_run(std::vector<std::string> argv) {
  auto result = run_command(std::move(argv), {.deadline = seconds(240)});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  return result;
}

/// A libtorch for CUDA exports parts of an older libstdc++ that crash when they are found first.
void expect_system_library_first(const std::string& program) {
  const std::string needed = must({"readelf", "-d", program}).out;
  const auto system = needed.find("[libstdc++"), torch = needed.find("[libtorch");
  ASSERT_NE(torch, needed.npos) << needed;
  if (system == needed.npos) {  // linked into the program, where there is only libstdc++.a
    EXPECT_THAT(must({"nm", "-D", "--undefined-only", program}).out,
                ::testing::Not(::testing::HasSubstr("St10filesystem")));
    return;
  }
  EXPECT_LT(system, torch) << program << " would call libtorch's std::filesystem\n" << needed;
}

TEST(Install, AProjectOfTenLinesBuildsAgainstTheInstalledTree) {
  std::string scratch = (fs::temp_directory_path() / "trireme-install-XXXXXX").string();
  ASSERT_NE(::mkdtemp(scratch.data()), nullptr);
  must_run({"cmake", "--install", TRIREME_BINARY_DIR, "--prefix", scratch + "/prefix"});
  must_run({"cmake", "-G", "Ninja", "-S", TRIREME_SOURCE_DIR "/tests/e2e/consumer", "-B",
            scratch + "/build", "-DCMAKE_PREFIX_PATH=" + scratch + "/prefix",
            "-DCMAKE_BUILD_TYPE=Debug"});
  must_run({"cmake", "--build", scratch + "/build"});
  const auto result =
      must_run({scratch + "/prefix/bin/trireme", "run", "-n", "2", scratch + "/build/consumer"});
  EXPECT_THAT(result.out, ::testing::HasSubstr("sum 3"));
  expect_system_library_first(scratch + "/build/consumer");
  expect_system_library_first(scratch + "/prefix/bin/trireme-rank");
  fs::remove_all(scratch);
}

}  // namespace
}  // namespace trireme::test
