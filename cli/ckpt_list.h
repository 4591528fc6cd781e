#pragma once

#include <string>
#include <vector>

namespace trireme::cli {

enum class Form { Text, Json };

/// Prints a table, or a JSON array, of the steps in `folder`, or of `folder` itself if it is a
/// step: whole, damaged (as far as sizes tell), unfinished or put aside. Returns false if there is
/// none.
bool print_steps(const std::string& folder, Form form);

/// When the checkpoint was completed: "2031-05-01 12:00:00".
std::string time_of(const std::string& step_folder);

}  // namespace trireme::cli
