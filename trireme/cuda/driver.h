#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace trireme::cuda {

/// The CUDA driver, opened at run time: the few functions that load and launch kernels. The types
/// are those of its interface; all of them are plain pointers and numbers.
class Driver {
 public:
  using Module = void*;
  using Function = void*;
  using Stream = void*;

  /// Throws Error if there is no driver.
  static const Driver& get();

  /// The newest CUDA that the driver can run: 13000 for 13.0.
  int version() const;
  int num_devices() const;
  /// "NVIDIA H200".
  std::string name(int device) const;
  int64_t memory_bytes(int device) const;
  /// 90 for compute capability 9.0.
  int architecture(int device) const;
  int multiprocessors(int device) const;
  /// The most shared memory that a block may ask for, in bytes.
  int shared_bytes(int device) const;

  /// Loads compiled code for the current device.
  Module load(const void* code) const;
  Function function(Module module, const char* name) const;
  /// Lets a kernel use so many bytes of shared memory.
  void allow_shared(Function function, int bytes) const;
  void launch(Function function, const unsigned (&grid)[3], const unsigned (&block)[3],
              unsigned shared_bytes, Stream stream, void** arguments) const;

 private:
  Driver();
  void check(int code, const char* call) const;
  int handle(int device) const;
  int attribute(int which, int device) const;

  int (*cuInit_)(unsigned) = nullptr;
  int (*cuGetErrorString_)(int, const char**) = nullptr;
  int (*cuDriverGetVersion_)(int*) = nullptr;
  int (*cuDeviceGetCount_)(int*) = nullptr;
  int (*cuDeviceGet_)(int*, int) = nullptr;
  int (*cuDeviceGetName_)(char*, int, int) = nullptr;
  int (*cuDeviceTotalMem_)(std::size_t*, int) = nullptr;
  int (*cuDeviceGetAttribute_)(int*, int, int) = nullptr;
  int (*cuModuleLoadData_)(void**, const void*) = nullptr;
  int (*cuModuleGetFunction_)(void**, void*, const char*) = nullptr;
  int (*cuFuncSetAttribute_)(void*, int, int) = nullptr;
  int (*cuLaunchKernel_)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                         unsigned, void*, void**, void**) = nullptr;
};

}  // namespace trireme::cuda
