// What `trireme ckpt import` and `export` promise besides the bits: little memory however large the
// model is, and nothing half-written when they are stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>

#include "support/command.h"
#include "support/hf_model.h"
#include "support/scratch.h"
#include "support/training.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using test::Command;
using test::hf_gpt2;
using test::hf_llama;
using test::HfModel;
using test::HfSizes;
using test::kTrireme;
using test::run_patiently;
using test::Scratch;
using ::testing::HasSubstr;

/// A model of some 50 MiB for each layer.
HfSizes wide(int64_t layers) {
  return {.layers = layers,
          .hidden = 1024,
          .heads = 16,
          .kv_heads = 16,
          .ffn = 4096,
          .seq = 64,
          .vocab = 500,
          .tie = true};
}

/// Runs a command that must succeed, and returns the most memory that it had at a time. Python
/// starts it: a process inherits the peak of the one that it was forked from, and this one is
/// large.
int64_t peak_mib(std::vector<std::string> command) {
  command.insert(command.begin(),
                 {test::python_with_torch(), "-c",
                  "import resource, subprocess, sys\n"
                  "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
                  "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)\n"});
  const auto result = run_patiently(std::move(command));
  EXPECT_EQ(result.code, 0) << result.err;
  return result.code == 0 ? std::stoll(result.out) : -1;
}

TEST(ExchangeLimits, TheMemoryDoesNotGrowWithTheModel) {
  constexpr int64_t kMostMib = 128, kMostGrowthMib = 16;
  for (const std::string kind : {"gpt2", "llama"}) {  // most weights are transposed; none is
    SCOPED_TRACE(kind);
    const Scratch scratch;
    std::vector<int64_t> imports, exports;
    for (const int64_t layers : {1, 5}) {
      const std::string theirs = scratch / std::to_string(layers), ours = theirs + "-ours",
                        back = theirs + "-back";
      (kind == "gpt2" ? hf_gpt2("F32", wide(layers)) : hf_llama("F32", wide(layers))).write(theirs);
      EXPECT_GT(fs::file_size(theirs + "/model.safetensors"), 40u * layers << 20);
      imports.push_back(peak_mib({kTrireme, "ckpt", "import", theirs, ours}));
      exports.push_back(peak_mib({kTrireme, "ckpt", "export", ours, back}));
      EXPECT_NEAR(static_cast<double>(fs::file_size(back + "/model.safetensors")),
                  static_cast<double>(fs::file_size(theirs + "/model.safetensors")), 4096)
          << "but for the header";
    }
    for (const auto& peaks : {imports, exports}) {
      EXPECT_LT(peaks[1], kMostMib);
      EXPECT_LT(peaks[1], peaks[0] + kMostGrowthMib) << "a model of five layers, and of one";
    }
  }
}

TEST(ExchangeLimits, ASignalLeavesNothingHalfWritten) {
  const Scratch scratch;
  const std::string theirs = scratch / "hf", ours = scratch / "ours";
  hf_gpt2("F32", wide(5)).write(theirs);
  const auto stop = [&](const std::string& action, const std::string& from, int signal) {
    SCOPED_TRACE(action);
    const std::string out = scratch / "out";
    Command running({kTrireme, "ckpt", action, from, out}, {.deadline = test::kPatience});
    // It has begun to write when there is a file.
    ASSERT_TRUE(test::eventually(
        [&] { return fs::exists(out + ".tmp") && !fs::is_empty(out + ".tmp"); }, test::kPatience));
    running.signal(signal);
    const auto result = running.finish();
    EXPECT_EQ(result.code, 128 + signal) << result.out << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err, "trireme ckpt " + action + ": stopped; " + out + " was removed\n");
    EXPECT_FALSE(fs::exists(out));
    EXPECT_FALSE(fs::exists(out + ".tmp"));
  };
  stop("import", theirs, SIGINT);
  stop("import", theirs, SIGTERM);
  ASSERT_EQ(run_patiently({kTrireme, "ckpt", "import", theirs, ours}).code, 0)
      << "what was stopped is not in the way";
  stop("export", ours, SIGINT);
  const auto result = run_patiently({kTrireme, "ckpt", "export", ours, scratch / "out"});
  EXPECT_EQ(result.code, 0) << result.err;
}

}  // namespace
}  // namespace trireme
