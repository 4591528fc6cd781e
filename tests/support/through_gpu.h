// Runs tests that were written for host memory on NCCL: every op copies its tensors to the GPU,
// runs there, and copies the results back when it is waited for.
#pragma once

#include "trireme/comm/communicator.h"

namespace trireme::test {

/// Whether ranks can use NCCL here. They share a GPU if there are fewer GPUs than ranks, which NCCL
/// allows since 2.30 (TRIREME_NCCL_LIBRARY names such a library).
bool nccl_available();

/// The GPU of a rank of this host.
at::Device gpu_of(int rank);

/// The same world, whose ops on host memory take the way over the GPU of this rank.
comm::Communicator through_gpu(const comm::Communicator& world);

}  // namespace trireme::test
