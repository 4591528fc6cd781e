#pragma once

// All that a user needs.
#include "trireme/comm/communicator.h"
#include "trireme/comm/local/local.h"
#include "trireme/core/error.h"
#include "trireme/data/loader.h"
#include "trireme/layout/even_part.h"
#include "trireme/layout/layout.h"
#include "trireme/mesh/guard.h"
#include "trireme/mesh/init.h"
#include "trireme/mesh/mesh.h"
#include "trireme/nn/layers.h"
#include "trireme/nn/loss.h"
#include "trireme/nn/parameters.h"
#include "trireme/nn/recompute.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/schedule.h"
#include "trireme/parallel/data_parallel.h"
