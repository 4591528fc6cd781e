#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace trireme::cli {

/// How often a true class (rows) was taken for which (columns), [classes, classes], as an SVG
/// picture: the darker, the more of the row. With more than 20 classes the cells have no numbers.
std::string draw_confusions(const at::Tensor& counts);

}  // namespace trireme::cli
