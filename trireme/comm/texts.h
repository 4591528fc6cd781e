#pragma once

#include <string>
#include <vector>

#include "trireme/comm/communicator.h"

namespace trireme::comm {

/// The texts of all ranks, on every rank. Collective.
std::vector<std::string> all_gather_texts(const Communicator& group, const std::string& mine);

/// The same on the root only; the other ranks get an empty list. Collective.
std::vector<std::string> gather_texts(const Communicator& group, const std::string& mine, int root);

/// The root's text, on every rank. Collective.
std::string broadcast_text(const Communicator& group, const std::string& mine, int root);

}  // namespace trireme::comm
