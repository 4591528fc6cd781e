#pragma once

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/ps/client.h"
#include "trireme/train/attach.h"

namespace trireme::train {

/// A worker's part of a run on servers: does the work that the manager gives it, until there is no
/// more. *Collective over the worker's ranks.* `config`: by config_of_worker. `client`: of this
/// rank.
void work_on_servers(const config::Config& config, const comm::Communicator& ranks,
                     const ModelFactory& model, ps::Client& client);

}  // namespace trireme::train
