#pragma once

#include <memory>

#include "trireme/comm/backend.h"
#include "trireme/comm/nccl/placement.h"

namespace trireme::comm {

/// Adds NCCL to a world: tensors on GPUs travel over it, those in host memory as before. `host` is
/// what make_local, make_shm or make_tcp returned. Where ranks share a GPU, it also tells NCCL so
/// (NCCL_MULTI_RANK_GPU_ENABLE, unless that is set).
std::shared_ptr<Backend> make_nccl(std::shared_ptr<Backend> host, nccl::Sharing sharing);

}  // namespace trireme::comm
