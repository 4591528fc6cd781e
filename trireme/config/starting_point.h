#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::config {

/// The models for which there is a starting point: words of model.kind that are built.
std::vector<std::string_view> starting_points();

/// A configuration of the model to begin with, as a commented file made from the table of keys:
/// what it sets, and, behind '#', what else could be set and how it is now. Throws ConfigError for
/// another name.
std::string starting_point(std::string_view model);

}  // namespace trireme::config
