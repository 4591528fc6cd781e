#pragma once

#include <cstdint>

namespace trireme::nn {

/// y = W x, of floats: W is [rows, width], row after row. It reads W once, in order, and is as fast
/// as memory gives it. The sum of a row does not depend on which rows are computed with it, so that
/// any number of threads gives the same bits. One source is compiled for several kinds of CPU, and
/// the best that this one supports is picked at run time.
using MatvecKernel = void (*)(const float* weight, const float* x, float* y, int64_t rows,
                              int64_t width);

MatvecKernel matvec_kernel();

}  // namespace trireme::nn
