// Every kernel text compiles for every architecture that we name, also where there is no GPU.
#include <glob.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "trireme/core/error.h"
#include "trireme/cuda/compiler.h"
#include "trireme/cuda/kernel.h"

namespace trireme::cuda {
namespace {

constexpr const char* kNoCompiler = "no NVRTC: scripts/setup installs nvidia-cuda-nvrtc from PyPI";

/// Whether there is an NVRTC: where the compiler looks for one, or else where scripts/setup puts
/// it, which is somewhere else if libtorch is not the one of our .venv.
bool found_compiler() {
  if (has_compiler()) return true;
  glob_t found{};
  const std::string ours =
      TRIREME_SOURCE_DIR "/.venv/lib/python3*/site-packages/nvidia/cu*/lib/libnvrtc.so.*";
  if (::glob(ours.c_str(), 0, nullptr, &found) == 0)
    ::setenv("TRIREME_NVRTC_LIBRARY", found.gl_pathv[0], /*overwrite=*/0);
  ::globfree(&found);
  return has_compiler();
}

TEST(KernelTexts, CompileForEveryArchitectureAndType) {
  if (!found_compiler()) GTEST_SKIP() << kNoCompiler;
  for (const int architecture : {80, 90, 100})
    for (const char* type : {"bf16", "f16", "float"})
      for (const bool wide : {false, true})
        for (const std::string& file : kernel_files()) {
          const int pack = wide ? (std::string(type) == "float" ? 4 : 8) : 1;
          const std::vector<std::string> defines{fmt::format("TYPE={}", type),
                                                 fmt::format("PACK={}", pack),
                                                 "PACKS=3",
                                                 "WIDTH=40",
                                                 fmt::format("CENTRED={}", wide ? 1 : 0),
                                                 "HEAD=64",
                                                 "Q_HEADS=4",
                                                 "KV_HEADS=2",
                                                 fmt::format("NEIGHBOURS={}", wide ? 1 : 0),
                                                 fmt::format("WEIGHT={}", type),
                                                 fmt::format("KEEP={}", wide ? 1 : 0)};
          EXPECT_GT(compile(kernel_text(file), defines, architecture).size(), 500)
              << file << " for sm_" << architecture << " of " << type;
        }
}

TEST(KernelTexts, AnErrorShowsTheCompilersMessage) {
  if (!found_compiler()) GTEST_SKIP() << kNoCompiler;
  try {
    compile("__global__ void broken() { undeclared = 1; }", {}, 90);
    FAIL() << "it compiled";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("undeclared"), std::string::npos) << error.what();
  }
}

TEST(KernelTexts, IncludeNoHeader) {
  for (const std::string& file : kernel_files())
    EXPECT_EQ(kernel_text(file).find("#include"), std::string::npos) << file;
}

}  // namespace
}  // namespace trireme::cuda
