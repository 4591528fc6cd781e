#pragma once

// All that a user needs.
#include "trireme/comm/communicator.h"
#include "trireme/comm/local/local.h"
#include "trireme/core/error.h"
#include "trireme/layout/layout.h"
#include "trireme/mesh/guard.h"
#include "trireme/mesh/init.h"
#include "trireme/mesh/mesh.h"
