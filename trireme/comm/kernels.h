#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "trireme/core/op_info.h"

namespace trireme::comm {

/// The arithmetic of reductions for one kind of CPU. All kinds give the same bits: elements are
/// combined in the order of the sources, 16-bit floats in fp32 and rounded once (to nearest even),
/// a mean is summed and divided once at the end. Max and min of a NaN are that NaN, as in torch.
/// Integers wrap; their means are summed in 64 bits and truncated toward zero. (Where several
/// sources hold different NaNs, the sum is a NaN whose payload is not specified.)
///
/// Pointers need no alignment. `DType::Other` can be copied but not reduced; the code that starts
/// an operation checks that.
struct Kernels {
  const char* name;  ///< "base", "avx2" or "avx512"

  /// out[k][i] = op over s of in[s][i], for every k and i < count. An output may be one of the
  /// inputs (the same pointer) but not overlap one otherwise.
  void (*reduce)(core::DType dtype, core::ReduceOp op, void* const* out, int num_out,
                 const void* const* in, int num_in, int64_t count);

  /// acc[i] = acc[i] op in[i], for algorithms that combine pairwise. Mean only adds here, in the
  /// dtype itself; `divide` completes it.
  void (*fold)(core::DType dtype, core::ReduceOp op, void* acc, const void* in, int64_t count);

  /// x[i] /= divisor (integers truncate toward zero); divisor > 0.
  void (*divide)(core::DType dtype, void* x, int64_t divisor, int64_t count);

  /// Copies with ordinary stores, for data that will be read soon.
  void (*copy)(void* to, const void* from, int64_t bytes);

  /// Copies past the cache, and makes the bytes visible (sfence) before it returns.
  void (*copy_streaming)(void* to, const void* from, int64_t bytes);
};

/// The kernels that this CPU can run, the best last. CMake picks the file for the architecture:
/// kernels_x86.cpp or kernels_plain.cpp.
std::vector<const Kernels*> runnable_kernels();

/// The best kernels for this CPU, or those that TRIREME_CPU=base|avx2|avx512 names. Throws
/// ConfigError if the CPU cannot run them.
const Kernels& kernels();

/// The kernels of that name, for tests. Throws ConfigError like kernels().
const Kernels& kernels_named(std::string_view name);

/// Whether `name` is a kind of kernels that this CPU can run.
bool cpu_supports(std::string_view name);

/// Bytes of one element; 0 for DType::Other.
int64_t item_bytes(core::DType dtype);

}  // namespace trireme::comm
