#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::core {

/// A shared library that is opened at run time, so that no build needs it. It stays open until the
/// process ends.
class DynamicLibrary {
 public:
  /// Where the calls inside the library look for its functions: first in all that the program has
  /// loaded, as usual, or first in the library itself. The latter is for a library of which the
  /// program may have loaded another version.
  enum class Symbols : uint8_t { GlobalFirst, OwnFirst };

  /// Opens the first of `candidates` that can be opened (paths, or names that the system's loader
  /// finds). Throws Error, with what was tried, if there is none.
  DynamicLibrary(std::string what, const std::vector<std::string>& candidates,
                 Symbols symbols = Symbols::GlobalFirst);

  const std::string& path() const { return path_; }

  /// A function of the library. Throws Error if it has none of this name.
  template <class Function>
  Function* get(const char* name) const {
    return reinterpret_cast<Function*>(find(name, /*required=*/true));
  }
  /// The same for a variable that points to functions of its type.
  template <class Function>
  void bind(Function*& to, const char* name) const {
    to = get<Function>(name);
  }
  /// The same as get, but nullptr if there is none: an older version of the library.
  template <class Function>
  Function* get_if(const char* name) const {
    return reinterpret_cast<Function*>(find(name, /*required=*/false));
  }

 private:
  void* find(const char* name, bool required) const;

  std::string what_, path_;
  void* handle_ = nullptr;
};

/// The folder that holds the library which defines `address`; empty if unknown.
std::string folder_of_library(const void* address);

}  // namespace trireme::core
