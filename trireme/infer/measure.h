#pragma once

#include "trireme/data/dataset.h"
#include "trireme/mesh/mesh.h"
#include "trireme/nn/model.h"

namespace trireme::infer {

struct MeasureOptions {
  int64_t rows = 8;     ///< samples that go through the model at once
  int64_t samples = 0;  ///< at most so many, from the first on; 0: all
  int64_t classes = 0;  ///< above 0: count confusions of so many
};

/// How well a model predicts the targets of a dataset.
struct Measured {
  double loss_sum = 0;  ///< in nats
  int64_t targets = 0, correct = 0, samples = 0;
  at::Tensor confusions;  ///< int64 [classes, classes]: how often a true class was taken for which

  double loss() const { return loss_sum / static_cast<double>(targets); }
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(targets); }
};

/// Runs each sample once through the model, which must be in eval mode, and compares the likeliest
/// class (or token) with the target; targets below 0 do not count. The samples are dealt to the
/// ranks that share a batch; every rank gets the sums of all. Collective. Throws ConfigError if the
/// model is not a chain with a head, or the dataset is empty.
Measured measure(nn::ModelImpl& model, const data::Dataset& dataset, const Mesh& mesh,
                 const MeasureOptions& options);

}  // namespace trireme::infer
