#include "trireme/comm/nccl/gpu.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>
#include <vector>

#include "trireme/core/dynamic_library.h"
#include "trireme/core/error.h"

namespace trireme::comm::nccl {

namespace {

/// The CUDA driver, opened at run time: the few functions that libtorch does not offer without the
/// headers of CUDA.
struct Driver {
  static const Driver& get() {
    static const Driver driver;
    return driver;
  }

  Driver() : library("the CUDA driver", {"libcuda.so.1", "libcuda.so"}) {
    library.bind(init, "cuInit");
    library.bind(error_string, "cuGetErrorString");
    library.bind(device_get, "cuDeviceGet");
    library.bind(device_uuid, "cuDeviceGetUuid");
    library.bind(context_get, "cuCtxGetCurrent");
    library.bind(context_set, "cuCtxSetCurrent");
    library.bind(context_retain, "cuDevicePrimaryCtxRetain");
    library.bind(priorities, "cuCtxGetStreamPriorityRange");
    library.bind(stream_create, "cuStreamCreateWithPriority");
    library.bind(stream_capturing, "cuStreamIsCapturing");
    check(init(0), "cuInit");
  }

  void check(int code, const char* call) const {
    if (code == 0) return;
    const char* text = nullptr;
    if (error_string(code, &text) != 0 || text == nullptr) text = "unknown error";
    throw Error(fmt::format("CUDA: {} failed: {} (code {})", call, text, code));
  }

  core::DynamicLibrary library;
  int (*init)(unsigned) = nullptr;
  int (*error_string)(int, const char**) = nullptr;
  int (*device_get)(int*, int) = nullptr;
  int (*device_uuid)(unsigned char*, int) = nullptr;
  int (*context_get)(void**) = nullptr;
  int (*context_set)(void*) = nullptr;
  int (*context_retain)(void**, int) = nullptr;
  int (*priorities)(int* least, int* greatest) = nullptr;
  int (*stream_create)(void**, unsigned flags, int priority) = nullptr;
  int (*stream_capturing)(void*, int*) = nullptr;
};

constexpr unsigned kNotWithTheDefaultStream = 1;  // CU_STREAM_NON_BLOCKING

/// Streams that their communicators have given back. They are used again and never destroyed:
/// libtorch's allocator may still record an event on one when a tensor is freed.
struct FreeStreams {
  std::mutex mutex;
  std::map<int, std::vector<void*>> of_device;

  static FreeStreams& get() {
    static auto* const streams = new FreeStreams;  // used while the process ends, too
    return *streams;
  }
};

void* make_stream(c10::Device device) {
  {
    FreeStreams& free = FreeStreams::get();
    const std::lock_guard lock(free.mutex);
    auto& streams = free.of_device[device.index()];
    if (!streams.empty()) {
      void* stream = streams.back();
      streams.pop_back();
      return stream;
    }
  }
  use_device(device);
  const Driver& driver = Driver::get();
  int least = 0, greatest = 0;
  driver.check(driver.priorities(&least, &greatest), "cuCtxGetStreamPriorityRange");
  void* stream = nullptr;
  // The highest priority: what the other ranks wait for goes before what only this one does.
  driver.check(driver.stream_create(&stream, kNotWithTheDefaultStream, greatest),
               "cuStreamCreateWithPriority");
  return stream;
}

/// libtorch knows a stream that is not its own by its address (c10::cuda::getStreamFromExternal).
c10::Stream as_torch_stream(void* handle, c10::Device device) {
  return c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(handle));
}

}  // namespace

std::optional<c10::Device> own_device(int local_rank) {
  if (!at::hasCUDA()) return std::nullopt;
  const auto devices = static_cast<int>(at::detail::getCUDAHooks().deviceCount());
  if (devices == 0) return std::nullopt;
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank % devices));
}

std::string identity_of(c10::Device device) {
  const Driver& driver = Driver::get();
  int handle = 0;
  unsigned char uuid[16] = {};
  driver.check(driver.device_get(&handle, device.index()), "cuDeviceGet");
  driver.check(driver.device_uuid(uuid, handle), "cuDeviceGetUuid");
  std::string text;
  for (const unsigned char byte : uuid) text += fmt::format("{:02x}", byte);
  return text;
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

bool is_capturing(const c10::Stream& stream) {
  int status = 0;  // 1: active
  const Driver& driver = Driver::get();
  return driver.stream_capturing(stream.native_handle(), &status) == 0 && status == 1;
}

void use_device(c10::Device device) {
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  const Driver& driver = Driver::get();
  void* context = nullptr;
  driver.check(driver.context_get(&context), "cuCtxGetCurrent");
  if (context != nullptr) return;
  int handle = 0;
  driver.check(driver.device_get(&handle, device.index()), "cuDeviceGet");
  driver.check(driver.context_retain(&context, handle), "cuDevicePrimaryCtxRetain");
  driver.check(driver.context_set(context), "cuCtxSetCurrent");
}

OwnStream::OwnStream(c10::Device device)
    : handle_(make_stream(device)), stream_(as_torch_stream(handle_, device)) {}

OwnStream::~OwnStream() {
  FreeStreams& free = FreeStreams::get();
  const std::lock_guard lock(free.mutex);
  free.of_device[stream_.device_index()].push_back(handle_);
}

}  // namespace trireme::comm::nccl
