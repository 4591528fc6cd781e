#pragma once

#include <fmt/format.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/cuda/driver.h"

namespace trireme::cuda {

/// The text of a kernel file, such as "norm": what all texts share, then the file. The files are
/// trireme/cuda/kernels/*.cu, and are part of the library.
std::string kernel_text(std::string_view file);
/// The names of all files but the shared one.
std::vector<std::string> kernel_files();

/// How a kernel is launched. `grid` and `block` count blocks, and threads of a block.
struct Launch {
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
};

/// A launch with a thread for each of `count` pieces of work, or with many rounds of the whole GPU,
/// whose threads then go over them in strides of the grid.
Launch launch_over(int64_t count, const at::Tensor& on);

/// A kernel for the GPU that a tensor is on. It is compiled when it is first used, and then kept in
/// memory and on disk. `defines` choose the element type (TYPE), the elements of an instruction
/// (PACK) and whatever else the file asks for.
class Kernel {
 public:
  Kernel(std::string_view file, const char* name, std::vector<std::string> defines,
         const at::Tensor& on);

  /// Launches it on the current stream of its GPU. The arguments must have exactly the types of the
  /// kernel's parameters.
  template <class... Arguments>
  void operator()(const Launch& how, Arguments... arguments) const {
    void* pointers[] = {&arguments...};
    launch(how, pointers);
  }

 private:
  void launch(const Launch& how, void** arguments) const;

  Driver::Function function_;
  c10::Device device_;
};

/// "TYPE=bf16", "TYPE=f16" or "TYPE=float".
std::string type_define(at::ScalarType dtype);
/// "PACK=8": as many elements as 16 bytes hold if every row and address allows it, else "PACK=1".
int pack_elems(at::ScalarType dtype, int64_t width, const std::vector<const void*>& addresses);

/// How many multiprocessors a tensor's GPU has, and how much shared memory a block may use.
int multiprocessors(const at::Tensor& on);
int shared_bytes(const at::Tensor& on);
/// 90 for compute capability 9.0.
int architecture(c10::Device device);

/// The current stream of the tensor's GPU, as the driver knows it.
Driver::Stream current_stream(c10::Device device);

}  // namespace trireme::cuda
