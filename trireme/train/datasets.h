#pragma once

#include <memory>

#include "trireme/config/config.h"
#include "trireme/data/dataset.h"

namespace trireme::train {

/// What the configuration trains on, and what it is judged by. Throws where that cannot be read.
std::shared_ptr<const data::Dataset> make_dataset(const config::Config& config);
std::shared_ptr<const data::Dataset> make_valid_dataset(const config::Config& config);

}  // namespace trireme::train
