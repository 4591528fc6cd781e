#pragma once

#include <string>
#include <vector>

#include "trireme/verify/verify.h"

namespace trireme::verify {

/// Adds the comparison of a step; the report keeps the largest difference of each tensor.
void add_rows(Report& report, const std::vector<ComparedTensor>& step);

/// Converts a report to a text and back, to send it to the other ranks.
std::string to_text(const Report& report);
Report report_of(const std::string& text);

}  // namespace trireme::verify
