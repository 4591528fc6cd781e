#pragma once

#include "trireme/comm/op.h"

namespace trireme::comm::nccl {

/// The collective of this kind without data: with the description of the real one it is what the
/// hosts run beside an op on GPUs. `nothing`: an empty tensor in host memory.
Op without_data(const core::OpInfo& info, const at::Tensor& nothing);

}  // namespace trireme::comm::nccl
