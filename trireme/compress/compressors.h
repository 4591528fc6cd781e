#pragma once

#include <memory>

#include "trireme/compress/compressor.h"
#include "trireme/compress/kernels.h"

// What factory.h makes. One file each: halves.cpp, int8.cpp, onebit.cpp, topk.cpp.
namespace trireme::compress {

std::unique_ptr<Compressor> make_fp16(const Kernels& kernels);
std::unique_ptr<Compressor> make_bf16(const Kernels& kernels);
std::unique_ptr<Compressor> make_int8(const Kernels& kernels);
std::unique_ptr<Compressor> make_onebit(const Kernels& kernels);
std::unique_ptr<Compressor> make_topk(const Kernels& kernels, double ratio);

}  // namespace trireme::compress
