#pragma once

#include <span>
#include <string_view>

namespace trireme::cuda {

/// A file of trireme/cuda/kernels, without its extension, and what is in it.
struct KernelText {
  std::string_view name, text;
};

/// All files. CMake writes the list (cmake/trireme_kernel_texts.cmake).
std::span<const KernelText> kernel_texts();

}  // namespace trireme::cuda
