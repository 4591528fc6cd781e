#pragma once

#include <string>

namespace trireme::format {

// People name a checkpoint by a run's folder, its checkpoints/, or one step in there. All three
// throw ConfigError where PATH is none of these.

/// Whether it is the folder of one finished step.
bool is_step(const std::string& path);

/// The folder with the steps, or the step itself.
std::string steps_folder(const std::string& path);

/// The folder of one step: PATH, or the newest in it.
std::string find_step(const std::string& path);

}  // namespace trireme::format
