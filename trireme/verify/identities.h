#pragma once

#include <string>
#include <vector>

#include "trireme/verify/verify.h"

namespace trireme::verify {

/// Why a configuration is not meant to give what one rank gives: local updates, compression,
/// asynchronous pipelines. Empty if it is.
std::string why_not_equal(const config::Config& config);

/// The same without these: what `verify` can compare with one rank.
config::Config comparable(config::Config config);

/// Two configurations that must train to the same weights on one mesh.
struct Identity {
  std::string sentence;  ///< "bmuf without momentum = averaging"
  config::Config one, other;
  double tolerance = 1e-12;  ///< of max|a-b| / max|b|
  double difference = 0;     ///< found
  bool holds() const { return difference <= tolerance; }
};

/// The identities that the methods of a configuration must satisfy, by their papers, with plain
/// SGD in float64, a constant learning rate and no clipping.
std::vector<Identity> identities_of(const config::Config& config);

/// Trains both sides of each identity for some steps on the mesh, and fills in the differences; the
/// same on all ranks. Collective.
std::vector<Identity> prove_identities(const TrainingSetup& setup, const comm::Communicator& world,
                                       const Degrees& degrees, int64_t steps);

/// A line for each, and the verdict.
std::string text_of(const std::vector<Identity>& proved);

}  // namespace trireme::verify
