#pragma once

#include <set>
#include <string>
#include <vector>

#include "trireme/format/chat/syntax.h"

namespace trireme::format::chat {

/// Runs the statements of a template with some variables and gives what it prints. Throws Error
/// with the line of the template.
std::string run_template(const std::vector<Statement>& statements, Dict variables);

}  // namespace trireme::format::chat
