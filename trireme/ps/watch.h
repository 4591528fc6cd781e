#pragma once

#include <optional>
#include <string>

#include "trireme/net/secret.h"
#include "trireme/net/socket.h"
#include "trireme/ps/manager_place.h"

namespace trireme::ps {

/// Asks the manager how the job is, as somebody who takes no part in it. Returns its JSON (see
/// Manager::status); nothing if nobody answers who knows this secret and this job.
std::optional<std::string> ask_status(ManagerPlace& place, const std::string& job,
                                      const net::Secret& secret, net::Deadline until);

}  // namespace trireme::ps
