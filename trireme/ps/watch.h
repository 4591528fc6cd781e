#pragma once

#include <optional>
#include <string>

#include "trireme/net/secret.h"
#include "trireme/net/socket.h"
#include "trireme/ps/manager_place.h"

namespace trireme::ps {

/// What the manager says of its job, or why it says nothing.
struct StatusAnswer {
  std::optional<std::string> json = {};  ///< see Manager::status
  std::string why_not = {};              ///< "its manager does not answer: ..."
};

/// Asks the manager how the job is, as somebody who takes no part in it.
StatusAnswer ask_status(ManagerPlace& place, const std::string& job, const net::Secret& secret,
                        net::Deadline until);

}  // namespace trireme::ps
