#pragma once

#include <memory>
#include <optional>
#include <string>

#include "trireme/config/config.h"
#include "trireme/core/json.h"
#include "trireme/data/dataset.h"
#include "trireme/mesh/mesh.h"

namespace trireme::train {

/// The dataset that the configuration trains on, and the one that it evaluates on. Throws
/// ConfigError, with the remedy, if a file is missing or is not a file of tokens.
std::shared_ptr<const data::Dataset> make_dataset(const config::Config& config);
std::shared_ptr<const data::Dataset> make_valid_dataset(const config::Config& config);

/// The positions of each sequence that this rank of the mesh has, and the dataset that reads only
/// these. Where no context axis cuts sequences: all of them, and the dataset itself.
Positions positions_of(const config::Config& config, const Mesh& mesh);
std::shared_ptr<const data::Dataset> part_of(std::shared_ptr<const data::Dataset> dataset,
                                             const config::Config& config, const Mesh& mesh);

/// What a checkpoint stores about its training data.
core::Json facts_of(const data::Dataset& dataset);

/// A sentence with both facts if they differ; else nullopt.
std::optional<std::string> data_difference(const core::Json& saved, const core::Json& now);

}  // namespace trireme::train
