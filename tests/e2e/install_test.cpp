// What a user of the library does: install it, find_package it, build ten lines, run them. And what
// is installed: the public headers, each of which compiles alone, and what they include.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "support/command.h"
#include "support/curves.h"
#include "support/scratch.h"
#include "trireme/core/json.h"

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

/// The first group of every match.
std::vector<std::string> all_matches(const std::string& text, const char* form) {
  const std::regex expression(form);
  std::vector<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), expression), end; at != end; ++at)
    found.push_back((*at)[1]);
  return found;
}

std::vector<std::string> public_headers() {
  return all_matches(bytes_of(TRIREME_SOURCE_DIR "/cmake/trireme_public_headers.cmake"),
                     "\n  (trireme/[^ )\n]+\\.h)");
}

/// All that the public headers include, directly or through others: read where they are installed.
std::set<std::string> reachable_headers(const fs::path& include) {
  auto waiting = public_headers();
  std::set<std::string> found;
  while (!waiting.empty()) {
    const std::string header = waiting.back();
    waiting.pop_back();
    if (!found.insert(header).second) continue;
    for (const std::string& included :
         all_matches(bytes_of(include / header), "#include \"(trireme/[^\"]+)\""))
      waiting.push_back(included);
  }
  return found;
}

TEST(Install, InstallsThePublicHeadersAndWhatTheyIncludeAndNoOthers) {
  const Scratch scratch;
  must_run({"cmake", "--install", TRIREME_BINARY_DIR, "--prefix", scratch / "prefix"});
  const fs::path include = scratch / "prefix/include";
  std::set<std::string> installed;
  for (const auto& entry : fs::recursive_directory_iterator(include))
    if (entry.is_regular_file()) installed.insert(fs::relative(entry.path(), include));
  EXPECT_EQ(installed, reachable_headers(include));
  EXPECT_FALSE(installed.contains("trireme/comm/engine.h"));
}

/// How the build compiles the sources of a header's layer, without their names. trireme.h itself is
/// compiled like the topmost layer.
std::string compile_command(const core::Json& commands, const std::string& header) {
  const auto parts = all_matches(header, "([^/]+)/");
  const std::string layer = parts.size() > 1 ? parts[1] : "verify";
  for (const auto& entry : commands) {
    const auto command = entry.at("command").get<std::string>();
    if (command.find("/trireme_" + layer + ".dir/") == command.npos) continue;
    if (command.ends_with("cmake_pch.hxx.cxx")) continue;
    return std::regex_replace(command, std::regex(" -o \\S+ -c \\S+"), "");
  }
  return "";
}

/// The first line of what the compiler complains about when a source holds nothing but the header
/// and an assertion that fails. It is the assertion if the header stands alone; the compiler stops
/// there, before it instantiates the templates of libtorch, which takes ten times as long.
std::string first_complaint(const std::string& command, const std::string& header,
                            const std::string& source) {
  std::ofstream(source) << "#include \"" << header << "\"\n"
                        << "static_assert(sizeof(char) == 0, \"reached the end\");\n";
  const auto result = run_command(
      {"bash", "-c",
       "cd " TRIREME_BINARY_DIR " && " + command + " -fsyntax-only -Wfatal-errors " + source},
      {.deadline = seconds(60)});
  return result.err;
}

TEST(InstalledHeaders, EachPublicOneCompilesAlone) {
  const auto commands =
      core::parse_json(bytes_of(TRIREME_BINARY_DIR "/compile_commands.json"), "compile_commands");
  const Scratch scratch;
  const auto headers = public_headers();
  EXPECT_GE(headers.size(), 30u);
  for (const std::string& header : headers) {
    const std::string command = compile_command(commands, header);
    ASSERT_NE(command, "") << header;
    EXPECT_THAT(first_complaint(command, header, scratch / "alone.cpp"),
                ::testing::HasSubstr("reached the end"))
        << header;
  }
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
