// Every kernel text compiles for every architecture that we name, also where there is no GPU.
#include <gtest/gtest.h>

#include "trireme/core/error.h"
#include "trireme/cuda/compiler.h"
#include "trireme/cuda/kernel.h"

namespace trireme::cuda {
namespace {

TEST(KernelTexts, CompileForEveryArchitectureAndType) {
  if (!has_compiler())
    GTEST_SKIP() << "no NVRTC: scripts/setup installs nvidia-cuda-nvrtc from PyPI";
  for (const int architecture : {80, 90, 100})
    for (const char* type : {"bf16", "f16", "float"})
      for (const bool wide : {false, true})
        for (const std::string& file : kernel_files()) {
          const int pack = wide ? (std::string(type) == "float" ? 4 : 8) : 1;
          const std::vector<std::string> defines{fmt::format("TYPE={}", type),
                                                 fmt::format("PACK={}", pack),
                                                 "PACKS=3",
                                                 "WIDTH=40",
                                                 fmt::format("WEIGHT={}", type),
                                                 fmt::format("KEEP={}", wide ? 1 : 0)};
          EXPECT_GT(compile(kernel_text(file), defines, architecture).size(), 500)
              << file << " for sm_" << architecture << " of " << type;
        }
}

TEST(KernelTexts, AnErrorShowsTheCompilersMessage) {
  if (!has_compiler()) GTEST_SKIP() << "no NVRTC";
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
