#pragma once

#include <string>
#include <vector>

#include "trireme/verify/verify.h"

namespace trireme::verify {

/// Adds what a step came to: the worst of each tensor is kept.
void add_rows(Report& report, const std::vector<ComparedTensor>& step);

/// A report as a text and back, for those who were told of it.
std::string to_text(const Report& report);
Report report_of(const std::string& text);

}  // namespace trireme::verify
