#include "trireme/comm/nccl/placement.h"

#include <algorithm>
#include <map>

#include "trireme/core/env.h"
#include "trireme/core/error.h"

namespace trireme::comm::nccl {

namespace {

struct Gpu {
  std::string uuid;
  int version = 0;
};

Gpu parse(const std::string& text) {
  const auto space = text.find(' ');
  if (space == text.npos) return {};
  return {text.substr(0, space),
          static_cast<int>(core::parse_int(text.substr(space + 1)).value_or(0))};
}

}  // namespace

std::string gpu_text(int local_rank) {
  const auto device = own_device(local_rank);
  if (!device) return "";
  try {
    return fmt::format("{} {}", identity_of(*device), usable_version());
  } catch (const Error&) {
    return "";  // a driver that does not work
  }
}

Placement place(const std::vector<RankEntry>& entries) {
  Placement placement;
  const auto refuse = [&](std::string problem) {
    placement.possible = false;
    placement.problem = std::move(problem);
    return placement;
  };
  std::map<std::string, std::size_t> user;  // of each GPU: the first rank
  const int version = entries.empty() ? 0 : parse(entries.front().gpu).version;
  std::string shared;
  for (std::size_t rank = 0; rank < entries.size(); ++rank) {
    const Gpu gpu = parse(entries[rank].gpu);
    if (gpu.uuid.empty())
      return refuse(fmt::format(
          "rank {} (host {}) has no GPU, or its libtorch no CUDA; use TRIREME_BACKEND=auto", rank,
          entries[rank].host));
    if (gpu.version == 0)
      return refuse(
          fmt::format("rank {} (host {}) has no NCCL of 2.18 or later; set TRIREME_NCCL_LIBRARY to "
                      "one, or use TRIREME_BACKEND=auto",
                      rank, entries[rank].host));
    if (gpu.version != version)
      return refuse(
          fmt::format("rank 0 has NCCL {}, but rank {} (host {}) has {}; set "
                      "TRIREME_NCCL_LIBRARY to the same version on every rank",
                      version_text(version), rank, entries[rank].host, version_text(gpu.version)));
    const auto [first, is_new] = user.try_emplace(entries[rank].host_key + gpu.uuid, rank);
    if (!is_new && shared.empty())
      shared = fmt::format("ranks {} and {} share a GPU (host {})", first->second, rank,
                           entries[rank].host);
  }
  placement.possible = true;
  if (shared.empty()) return placement;
  placement.sharing = Sharing::SharedGpu;
  if (version < Library::kSharedGpu)
    return refuse(
        fmt::format("{}, which NCCL {} refuses; start one rank per GPU, set "
                    "TRIREME_NCCL_LIBRARY to NCCL 2.30 or later, or use "
                    "TRIREME_BACKEND=auto",
                    shared, version_text(version)));
  return placement;
}

}  // namespace trireme::comm::nccl
