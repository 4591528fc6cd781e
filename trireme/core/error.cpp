#include "trireme/core/error.h"

#include <system_error>

namespace trireme::core {

std::string errno_text(int errno_value) {
  return std::generic_category().message(errno_value);
}

}  // namespace trireme::core
