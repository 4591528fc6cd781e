#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/config/config.h"
#include "trireme/core/json.h"
#include "trireme/data/dataset.h"
#include "trireme/nn/model.h"
#include "trireme/verify/compare.h"
#include "trireme/verify/mistake.h"

namespace trireme::verify {

/// The dtype that the mesh computes in. All but Float64 also test the kernels that real training
/// uses: the mesh may then be at most twice as far from one rank's float64 as one rank in the same
/// precision is.
using config::Dtype;

/// "float64", "float32", "bfloat16", "float16"; throws ConfigError for another word.
Dtype dtype_of(const std::string& word);

/// The unit roundoff: half the distance from 1 to the next number.
double rounding_of(Dtype dtype);

struct Options {
  int64_t steps = 3;
  double tolerance = 1e-10;  ///< for max|a-b| / max|b|, in float64
  Mistake plant = Mistake::None;
  Dtype dtype = Dtype::Float64;
};

/// What is trained on the mesh and on one rank: the model, the samples and the configuration. The
/// model is made anew on each mesh. The dataset may be a different object on every rank, but must
/// hold the same samples.
struct TrainingSetup {
  config::Config config;  ///< everything except precision.compute is used
  std::function<std::shared_ptr<nn::ModelImpl>(const Mesh& mesh)> model;
  std::shared_ptr<const data::Dataset> data;
};

/// The first tensor that differs, in the order of computation.
struct Finding {
  int64_t step = 0;  ///< for weights: the step that starts from them
  TensorRole role = TensorRole::Input;
  std::string name;
  double difference = 0;
  int rank = 0;
  Diagnosis diagnosis;
  Dtype dtype = Dtype::Float64;

  /// One sentence: which tensor, where, by how much, and the likely kind of mistake.
  std::string sentence() const;
};

struct Report {
  Degrees degrees;
  int64_t steps = 0;  ///< how many were compared
  Dtype dtype = Dtype::Float64;
  double tolerance = 0;  ///< the largest difference that is allowed
  struct Row {
    TensorRole role;
    std::string name;
    double worst;  ///< over all steps and ranks
  };
  std::vector<Row> rows;  ///< in the order of computation
  std::vector<std::string> skipped;
  std::string not_resumed;  ///< why the mesh was not saved and resumed halfway; empty: it was
  std::optional<Finding> first;

  bool same() const { return !first.has_value(); }
  /// A line per layer and parameter, and the verdict.
  std::string text() const;
  core::Json json() const;
};

/// Trains on the mesh and, on its first rank, on one rank alone, from the same weights and samples,
/// and compares after every step: inputs, weights and buffers, the output of every layer, the loss
/// and every gradient; and at the end the loss of an evaluation. Halfway the mesh is saved, built
/// anew and resumed (in a folder of TMPDIR, which all ranks must see). Ends with the first step
/// that differs. The report is the same on every rank. Collective.
///
///   const auto report = verify::verify({config, make_model, data}, world, {.tensor = 2});
///   EXPECT_TRUE(report.same()) << report.text();
Report verify(const TrainingSetup& setup, const comm::Communicator& world, const Degrees& degrees,
              const Options& options = {});

}  // namespace trireme::verify
