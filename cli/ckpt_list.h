#pragma once

#include <string>
#include <vector>

namespace trireme::cli {

enum class Form { Text, Json };

/// Prints a table, or a JSON array, of the folders of steps: whole, damaged as far as sizes tell,
/// unfinished, put aside; false where there is none. `folder` holds steps, or is one.
bool print_steps(const std::string& folder, Form form);

/// When the checkpoint was completed: "2031-05-01 12:00:00".
std::string time_of(const std::string& step_folder);

}  // namespace trireme::cli
