#include "trireme/cuda/kernel.h"

#include <fmt/ranges.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "trireme/core/error.h"
#include "trireme/cuda/compiler.h"
#include "trireme/cuda/kernel_texts.h"

namespace trireme::cuda {

namespace {

/// The kernels that this process has loaded.
struct Loaded {
  std::mutex mutex;
  std::map<std::string, Driver::Module> modules;      // by text, defines and device
  std::map<std::string, Driver::Function> functions;  // and name
};

Loaded& loaded() {
  static Loaded all;
  return all;
}

/// A property of a GPU that does not change, asked for once.
template <int (Driver::*property)(int) const>
int property_of(c10::Device device) {
  static std::mutex mutex;
  static std::map<int, int> known;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace(device.index(), 0);
  if (is_new) found->second = (Driver::get().*property)(device.index());
  return found->second;
}

}  // namespace

std::string kernel_text(std::string_view file) {
  std::string shared, own;
  for (const KernelText& one : kernel_texts()) {
    if (one.name == "common") shared = one.text;
    if (one.name == file) own = one.text;
  }
  core::check(!own.empty(), "there is no kernel file '{}'", file);
  return shared + own;
}

std::vector<std::string> kernel_files() {
  std::vector<std::string> names;
  for (const KernelText& one : kernel_texts())
    if (one.name != "common") names.emplace_back(one.name);
  return names;
}

Kernel::Kernel(std::string_view file, const char* name, std::vector<std::string> defines,
               const at::Tensor& on)
    : device_(on.device()) {
  const std::string program =
      fmt::format("{} {} {}", file, fmt::join(defines, " "), device_.index());
  const std::string key = fmt::format("{} {}", program, name);
  Loaded& all = loaded();
  const std::lock_guard lock(all.mutex);
  auto& function = all.functions[key];
  if (function == nullptr) {
    const c10::DeviceGuard guard(device_);
    auto& module = all.modules[program];
    if (module == nullptr) {
      const std::string code = compile_cached(kernel_text(file), defines, architecture(device_));
      module = Driver::get().load(code.data());
    }
    function = Driver::get().function(module, name);
  }
  function_ = function;
}

void Kernel::launch(const Launch& how, void** arguments) const {
  constexpr unsigned kAlwaysAllowed = 48 << 10;
  const c10::DeviceGuard guard(device_);
  if (how.shared_bytes > kAlwaysAllowed)
    Driver::get().allow_shared(function_, static_cast<int>(how.shared_bytes));
  Driver::get().launch(function_, how.grid, how.block, how.shared_bytes, current_stream(device_),
                       arguments);
}

Launch launch_over(int64_t count, const at::Tensor& on) {
  constexpr unsigned kThreads = 256;
  const int64_t blocks =
      std::min<int64_t>((count + kThreads - 1) / kThreads, int64_t{64} * multiprocessors(on));
  return {.grid = {static_cast<unsigned>(blocks), 1, 1}, .block = {kThreads, 1, 1}};
}

Driver::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

std::string type_define(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16: return "TYPE=bf16";
    case at::kHalf: return "TYPE=f16";
    case at::kFloat: return "TYPE=float";
    default: break;
  }
  throw MisuseError(fmt::format("the GPU kernels have no version for {}", c10::toString(dtype)));
}

int pack_elems(at::ScalarType dtype, int64_t width, const std::vector<const void*>& addresses) {
  constexpr int kBytes = 16;
  const auto elems = kBytes / static_cast<int>(c10::elementSize(dtype));
  if (width % elems != 0) return 1;
  for (const void* address : addresses)
    if (reinterpret_cast<uintptr_t>(address) % kBytes != 0) return 1;
  return elems;
}

int multiprocessors(const at::Tensor& on) {
  return property_of<&Driver::multiprocessors>(on.device());
}
int architecture(c10::Device device) {
  return property_of<&Driver::architecture>(device);
}
int shared_bytes(const at::Tensor& on) {
  return property_of<&Driver::shared_bytes>(on.device());
}

}  // namespace trireme::cuda
