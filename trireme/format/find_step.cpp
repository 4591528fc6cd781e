#include "trireme/format/find_step.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "trireme/core/error.h"
#include "trireme/format/folder.h"
#include "trireme/format/index.h"

namespace trireme::format {

namespace {

bool is_directory(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

std::string checked_folder(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw ConfigError(fmt::format("there is no '{}'", path));
  if (!is_directory(path))
    throw ConfigError(fmt::format(
        "'{}' is not a folder: name a run, its checkpoints/, or a step in there", path));
  return path;
}

}  // namespace

bool is_step(const std::string& path) {
  struct stat status {};
  return ::stat((path + "/" + kIndexName).c_str(), &status) == 0;
}

std::string steps_folder(const std::string& typed) {
  const std::string path = checked_folder(typed);
  if (is_step(path)) return path;
  return is_directory(path + "/checkpoints") ? path + "/checkpoints" : path;
}

std::string find_step(const std::string& typed) {
  const std::string folder = steps_folder(typed);
  if (is_step(folder)) return folder;
  const auto steps = list(folder);
  if (steps.empty())
    throw ConfigError(fmt::format("'{}' holds no finished checkpoint (none has an {})",
                                  checked_folder(typed), kIndexName));
  return folder + "/" + step_name(steps.back());
}

}  // namespace trireme::format
