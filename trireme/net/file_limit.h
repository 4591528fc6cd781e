#pragma once

#include <string>

namespace trireme::net {

/// Lets this process have so many files open, or as many of them as the hard limit allows: the
/// usual limit of 1024 is a soft one. Throws CommError, with the remedy, if that is less than
/// `least`.
void raise_file_limit(int wanted, int least, const std::string& who);

}  // namespace trireme::net
