#include "trireme/cuda/driver.h"

#include "trireme/core/dynamic_library.h"
#include "trireme/core/error.h"

namespace trireme::cuda {

namespace {

// Numbers of the driver's interface.
constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76, kSharedOptIn = 97;
constexpr int kMaxDynamicShared = 8;

}  // namespace

const Driver& Driver::get() {
  static const Driver driver;
  return driver;
}

Driver::Driver() {
  const core::DynamicLibrary library("the CUDA driver", {"libcuda.so.1", "libcuda.so"});
  library.bind(cuInit_, "cuInit");
  library.bind(cuGetErrorString_, "cuGetErrorString");
  library.bind(cuDriverGetVersion_, "cuDriverGetVersion");
  library.bind(cuDeviceGetCount_, "cuDeviceGetCount");
  library.bind(cuDeviceGet_, "cuDeviceGet");
  library.bind(cuDeviceGetName_, "cuDeviceGetName");
  library.bind(cuDeviceTotalMem_, "cuDeviceTotalMem_v2");
  library.bind(cuDeviceGetAttribute_, "cuDeviceGetAttribute");
  library.bind(cuModuleLoadData_, "cuModuleLoadData");
  library.bind(cuModuleGetFunction_, "cuModuleGetFunction");
  library.bind(cuFuncSetAttribute_, "cuFuncSetAttribute");
  library.bind(cuLaunchKernel_, "cuLaunchKernel");
  check(cuInit_(0), "cuInit");
}

void Driver::check(int code, const char* call) const {
  if (code == 0) return;
  const char* text = nullptr;
  if (cuGetErrorString_(code, &text) != 0 || text == nullptr) text = "unknown error";
  throw Error(fmt::format("CUDA: {} failed: {} (code {})", call, text, code));
}

int Driver::version() const {
  int number = 0;
  check(cuDriverGetVersion_(&number), "cuDriverGetVersion");
  return number;
}

int Driver::num_devices() const {
  int count = 0;
  check(cuDeviceGetCount_(&count), "cuDeviceGetCount");
  return count;
}

int Driver::handle(int device) const {
  int handle = 0;
  check(cuDeviceGet_(&handle, device), "cuDeviceGet");
  return handle;
}

std::string Driver::name(int device) const {
  char text[256] = {};
  check(cuDeviceGetName_(text, sizeof(text), handle(device)), "cuDeviceGetName");
  return text;
}

int64_t Driver::memory_bytes(int device) const {
  std::size_t bytes = 0;
  check(cuDeviceTotalMem_(&bytes, handle(device)), "cuDeviceTotalMem");
  return static_cast<int64_t>(bytes);
}

int Driver::attribute(int which, int device) const {
  int value = 0;
  check(cuDeviceGetAttribute_(&value, which, handle(device)), "cuDeviceGetAttribute");
  return value;
}

int Driver::architecture(int device) const {
  return attribute(kMajor, device) * 10 + attribute(kMinor, device);
}
int Driver::multiprocessors(int device) const {
  return attribute(kMultiprocessors, device);
}
int Driver::shared_bytes(int device) const {
  return attribute(kSharedOptIn, device);
}

Driver::Module Driver::load(const void* code) const {
  Module module = nullptr;
  check(cuModuleLoadData_(&module, code), "cuModuleLoadData");
  return module;
}

Driver::Function Driver::function(Module module, const char* name) const {
  Function function = nullptr;
  check(cuModuleGetFunction_(&function, module, name), "cuModuleGetFunction");
  return function;
}

void Driver::allow_shared(Function function, int bytes) const {
  check(cuFuncSetAttribute_(function, kMaxDynamicShared, bytes), "cuFuncSetAttribute");
}

void Driver::launch(Function function, const unsigned (&grid)[3], const unsigned (&block)[3],
                    unsigned shared_bytes, Stream stream, void** arguments) const {
  check(cuLaunchKernel_(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                        shared_bytes, stream, arguments, nullptr),
        "cuLaunchKernel");
}

}  // namespace trireme::cuda
