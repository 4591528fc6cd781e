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

/// What both sides compute in. Float32 is what really runs, kernels of its own included: the mesh
/// may then be at most twice as far from one rank's float64 as one rank's float32 is.
enum class Dtype : uint8_t { Float64, Float32 };

/// "float64", "float32"; throws ConfigError for another word.
Dtype dtype_of(const std::string& word);
std::string_view to_string(Dtype dtype);

struct Options {
  int64_t steps = 3;
  double tolerance = 1e-10;  ///< of max|a-b| / max|b|, in float64
  Mistake plant = Mistake::None;
  Dtype dtype = Dtype::Float64;
};

/// What is to be proved: that this model, on these samples, trained as the configuration says,
/// gives on a mesh what it gives on one rank. The model is made anew on each mesh; the dataset may
/// be another object on every rank, but must hold the same samples.
struct TrainingSetup {
  config::Config config;  ///< of which everything but precision counts
  std::function<std::shared_ptr<nn::ModelImpl>(const Mesh& mesh)> model;
  std::shared_ptr<const data::Dataset> data;
};

/// The first tensor that differs, in the order of computation.
struct Finding {
  int64_t step = 0;  ///< of weights: the step that starts from them
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
  int64_t steps = 0;  ///< that were compared
  Dtype dtype = Dtype::Float64;
  double tolerance = 0;  ///< what a difference may be
  struct Row {
    TensorRole role;
    std::string name;
    double worst;  ///< over all steps and ranks
  };
  std::vector<Row> rows;  ///< in the order of computation
  std::vector<std::string> skipped;
  std::string not_resumed;  ///< why the mesh was not saved and resumed in the middle; empty: it was
  std::optional<Finding> first;

  bool same() const { return !first.has_value(); }
  /// A line per layer and parameter, and the verdict.
  std::string text() const;
  core::Json json() const;
};

/// Trains on the mesh and, on its first rank, on one rank alone, from the same weights and samples,
/// and compares after every step: what went in, weights and buffers, the output of every layer, the
/// loss, every gradient; and at the end the loss of an evaluation. In the middle the mesh is saved,
/// built anew and resumed (in a folder of TMPDIR, which all ranks must see). Ends with the first
/// step that differs. The report is the same on every rank. Collective.
///
///   const auto report = verify::verify({config, make_model, data}, world, {.tensor = 2});
///   EXPECT_TRUE(report.same()) << report.text();
Report verify(const TrainingSetup& setup, const comm::Communicator& world, const Degrees& degrees,
              const Options& options = {});

}  // namespace trireme::verify
