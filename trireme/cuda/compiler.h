#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::cuda {

/// Compiles a kernel text for one architecture (90: sm_90) by NVRTC, NVIDIA's compiler as a
/// library, which every libtorch with CUDA brings. It needs no GPU. Returns machine code. Throws
/// Error, with the compiler's messages, if the text is wrong, or if there is no NVRTC.
///
/// NVRTC is the library that $TRIREME_NVRTC_LIBRARY names, else the one beside libtorch, else the
/// one that the system's loader finds.
std::string compile(std::string_view text, const std::vector<std::string>& defines,
                    int architecture);

/// The same from the disk cache if it was compiled before.
std::string compile_cached(std::string_view text, const std::vector<std::string>& defines,
                           int architecture);

/// Whether there is an NVRTC.
bool has_compiler();
/// "13.0, /usr/lib/libnvrtc.so.13". Throws Error, with what was tried, if there is none.
std::string describe_compiler();

}  // namespace trireme::cuda
