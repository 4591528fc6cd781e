#pragma once

#include <string>
#include <string_view>

#include "trireme/pipeline/schedule.h"

namespace trireme::pipeline {

/// The schedule as PyTorch's CSV: a row per rank, a cell per action ("2F0", "1UNSHARD",
/// "(0F1;3B0)OVERLAP_F_B").
std::string to_csv(const Schedule& schedule);

/// Reads it back. Placement and number of micro-batches follow from who computes what. Throws
/// ScheduleError with row and column.
Schedule parse_csv(std::string name, std::string_view text);

/// The same from a file.
Schedule read_csv(const std::string& path);

}  // namespace trireme::pipeline
