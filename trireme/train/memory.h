#pragma once

#include <cstdint>

namespace trireme::train {

/// Proportional set size of this process: pages shared with other ranks count by their share.
int64_t pss_mib();

}  // namespace trireme::train
