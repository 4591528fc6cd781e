#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/layout/reduction.h"
#include "trireme/nn/parameters.h"
#include "trireme/ps/job.h"

namespace trireme::ps {

/// The parameters of a model that one rank of a worker holds.
struct HeldParameters {
  Coord coord = {};      ///< the rank's place in the mesh of its worker
  Degrees degrees = {};  ///< of that mesh
  Policy policy = {};
  std::vector<nn::Parameter> parameters = {};
  /// The pipe ranks that hold a parameter of this name; empty: this rank's only.
  std::function<Holders(const std::string& name)> holders = {};
  /// Of the rule's learning rate and weight decay; empty: parameters of fewer than two dims are not
  /// decayed.
  std::function<PieceFactors(const nn::Parameter& parameter)> factors = {};
};

/// Makes the dense table of a rank: the boxes, or the shards of boxes, that count on this rank. So
/// every element of the model is in exactly one table. Ranks that hold the same elements get them
/// from the one that counts.
///
///   a worker of tensor 2           rank 0                     rank 1
///     fc.weight, column cut        rows 0 .. n/2: table 0     rows n/2 .. n: table 1
///     ln.weight, the same          table 0                    gets it from rank 0
///
/// Only parameters that are trained are in it. The first values are those of the parameters, or
/// follow from their rules where they have no memory. Rule, consistency and the rest are the
/// caller's.
TableConfig parameter_table(const std::string& name, const HeldParameters& held);

/// The table of a module that each worker runs as a whole. All processes of the job must build the
/// module with the same values, or by the same seed. Frozen parameters are in no table: each worker
/// has its own. Buffers are if the job has a `buffer_table`, too.
TableConfig module_table(const torch::nn::Module& module, RulePtr rule,
                         const std::string& name = "weights");

}  // namespace trireme::ps
