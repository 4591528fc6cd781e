#include "trireme/cuda/compiler.h"

#include <fmt/ranges.h>

#include <c10/core/Device.h>

#include <cstddef>

#include "trireme/core/dynamic_library.h"
#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/cuda/disk_cache.h"

namespace trireme::cuda {

namespace {

using Program = void*;

/// NVRTC's functions.
struct Nvrtc {
  core::DynamicLibrary library;
  int (*version)(int*, int*);
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*compile)(Program, int, const char* const*);
  int (*destroy)(Program*);
  int (*log_size)(Program, std::size_t*);
  int (*log)(Program, char*);
  int (*code_size)(Program, std::size_t*);
  int (*code)(Program, char*);

  Nvrtc()
      : library("NVRTC, the CUDA compiler library,", candidates()),
        version(library.get<int(int*, int*)>("nvrtcVersion")),
        create(library.get<std::remove_pointer_t<decltype(create)>>("nvrtcCreateProgram")),
        compile(library.get<std::remove_pointer_t<decltype(compile)>>("nvrtcCompileProgram")),
        destroy(library.get<int(Program*)>("nvrtcDestroyProgram")),
        log_size(library.get<int(Program, std::size_t*)>("nvrtcGetProgramLogSize")),
        log(library.get<int(Program, char*)>("nvrtcGetProgramLog")),
        code_size(library.get<int(Program, std::size_t*)>("nvrtcGetCUBINSize")),
        code(library.get<int(Program, char*)>("nvrtcGetCUBIN")) {
    load_builtins();
  }

  /// NVRTC opens a second library by its name alone, and finds it if it is loaded already.
  void load_builtins() const {
    const std::string folder = core::folder_of_library(reinterpret_cast<const void*>(version));
    int major = 0, minor = 0;
    version(&major, &minor);
    const std::string name = fmt::format("libnvrtc-builtins.so.{}.{}", major, minor);
    const core::DynamicLibrary builtins("NVRTC's library of built-in functions",
                                        {folder.empty() ? "" : folder + "/" + name, name});
  }

  /// The wheels of torch keep NVRTC in a folder beside torch's.
  static std::vector<std::string> candidates() {
    std::vector<std::string> all{core::env("TRIREME_NVRTC_LIBRARY").value_or("")};
    const std::string torch =
        core::folder_of_library(reinterpret_cast<const void*>(&c10::DeviceTypeName));
    for (const char* version : {"13", "12"}) {
      const std::string name = fmt::format("libnvrtc.so.{}", version);
      if (!torch.empty()) {
        all.push_back(fmt::format("{}/../../nvidia/cu{}/lib/{}", torch, version, name));
        all.push_back(fmt::format("{}/../../nvidia/cuda_nvrtc/lib/{}", torch, name));
        all.push_back(fmt::format("{}/{}", torch, name));
      }
      all.push_back(name);
    }
    all.emplace_back("libnvrtc.so");
    return all;
  }
};

const Nvrtc& nvrtc() {
  static const Nvrtc functions;
  return functions;
}

std::vector<std::string> options_for(const std::vector<std::string>& defines, int architecture) {
  std::vector<std::string> options{"--std=c++17", "--device-as-default-execution-space",
                                   fmt::format("--gpu-architecture=sm_{}", architecture)};
  for (const std::string& define : defines) options.push_back("-D" + define);
  return options;
}

}  // namespace

bool has_compiler() {
  try {
    nvrtc();
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string describe_compiler() {
  int major = 0, minor = 0;
  nvrtc().version(&major, &minor);
  return fmt::format("{}.{}, {}", major, minor, nvrtc().library.path());
}

std::string compile(std::string_view text, const std::vector<std::string>& defines,
                    int architecture) {
  const auto options = options_for(defines, architecture);
  std::vector<const char*> pointers;
  for (const std::string& option : options) pointers.push_back(option.c_str());
  const std::string source(text);
  Program program = nullptr;
  if (nvrtc().create(&program, source.c_str(), "kernel.cu", 0, nullptr, nullptr) != 0)
    throw Error("NVRTC: no program could be made");
  struct Destroy {
    Program* program;
    ~Destroy() { nvrtc().destroy(program); }
  } const destroy{&program};
  if (nvrtc().compile(program, static_cast<int>(pointers.size()), pointers.data()) != 0) {
    std::size_t length = 0;
    nvrtc().log_size(program, &length);
    std::string log(length, '\0');
    nvrtc().log(program, log.data());
    throw Error(
        fmt::format("a kernel does not compile with {}:\n{}", fmt::join(options, " "), log));
  }
  std::size_t length = 0;
  nvrtc().code_size(program, &length);
  std::string code(length, '\0');
  nvrtc().code(program, code.data());
  return code;
}

std::string compile_cached(std::string_view text, const std::vector<std::string>& defines,
                           int architecture) {
  int major = 0, minor = 0;
  nvrtc().version(&major, &minor);
  const DiskCache cache("kernel");
  const std::string key = fmt::format("{}.{}\n{}\n{}", major, minor,
                                      fmt::join(options_for(defines, architecture), "\n"), text);
  if (auto found = cache.find(key)) return *found;
  return cache.keep(key, compile(text, defines, architecture));
}

}  // namespace trireme::cuda
