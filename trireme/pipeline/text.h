#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trireme/pipeline/schedule.h"

namespace trireme::pipeline {

/// The cells of a program: one per action ("2F0", "1UNSHARD"), one per overlapped pair
/// ("(0F1;3B0)OVERLAP_F_B").
std::vector<std::string> to_cells(const Program& program);

/// The schedule as PyTorch's CSV: a row per rank, a cell per action or pair. PyTorch cannot
/// read a schedule with Update.
std::string to_csv(const Schedule& schedule);

/// Reads such a text. The actions give the placement and the number of micro-batches. Empty cells
/// (PyTorch's idle steps), spaces, CRLF, a comma at the end and blank lines below are skipped.
/// Throws ScheduleError with row and column; `verify` checks whether it can run.
Schedule parse_csv(std::string name, std::string_view text);

/// The same from a file.
Schedule read_csv(const std::string& path);

}  // namespace trireme::pipeline
