#include "trireme/core/dynamic_library.h"

#include <dlfcn.h>

#include "trireme/core/error.h"

namespace trireme::core {

DynamicLibrary::DynamicLibrary(std::string what, const std::vector<std::string>& candidates,
                               Symbols symbols)
    : what_(std::move(what)) {
  const int flags = RTLD_NOW | RTLD_LOCAL | (symbols == Symbols::OwnFirst ? RTLD_DEEPBIND : 0);
  std::string tried;
  for (const std::string& path : candidates) {
    if (path.empty()) continue;
    handle_ = ::dlopen(path.c_str(), flags);
    if (handle_ != nullptr) {
      path_ = path;
      return;
    }
    tried += fmt::format("{}{}", tried.empty() ? "" : "; ", ::dlerror());
  }
  throw Error(fmt::format("{} cannot be opened: {}", what_, tried));
}

void* DynamicLibrary::find(const char* name, bool required) const {
  void* found = ::dlsym(handle_, name);
  if (found == nullptr && required)
    throw Error(fmt::format("{} ({}) has no function {}; is it too old?", what_, path_, name));
  return found;
}

std::string folder_of_library(const void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  const std::string path = info.dli_fname;
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

}  // namespace trireme::core
