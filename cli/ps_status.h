#pragma once

#include <string>

namespace trireme::cli {

/// The screen of `trireme ps status` for the JSON of a manager: the job, its servers and workers,
/// and who holds which range.
std::string status_screen(const std::string& json);

}  // namespace trireme::cli
