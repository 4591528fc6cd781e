#pragma once

#include <string>
#include <vector>

#include "trireme/comm/bootstrap.h"
#include "trireme/comm/nccl/channel.h"

namespace trireme::comm::nccl {

/// What a rank tells the others of its GPU when they meet: "<UUID> <version of NCCL>", or nothing
/// if it has no GPU. A version of 0: it has no NCCL that we can use.
std::string gpu_text(int local_rank);

/// Whether the ranks of a world can use NCCL, decided from what all of them told: so all ranks come
/// to the same answer.
struct Placement {
  bool possible = false;
  Sharing sharing = Sharing::GpuOfItsOwn;
  std::string problem;  ///< why not, and what to do about it
};
Placement place(const std::vector<RankEntry>& entries);

}  // namespace trireme::comm::nccl
