#pragma once

#include <string>

namespace trireme::net {

/// Raises the soft limit on open files (usually 1024) to `wanted`, or to the hard limit if that is
/// lower. Throws CommError, with the remedy, if the hard limit is below `least`.
void raise_file_limit(int wanted, int least, const std::string& who);

}  // namespace trireme::net
