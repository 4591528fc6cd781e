#pragma once

#include <string>

#include "trireme/config/config.h"
#include "trireme/nn/model.h"

namespace trireme::train {

/// The tensor bytes of the fullest rank of a run, at its peak.
struct Footprint {
  int64_t parameters = 0;  ///< the part that the rank keeps, with the masters of 16-bit weights
  int64_t masters = 0;     ///< of these, the masters
  int64_t gradients = 0;   ///< with the memory in which they are reduced
  int64_t optimizer = 0;
  int64_t gathered = 0;  ///< gathered weights
  int64_t meetings = 0;  ///< local updates: the common start, what it remembers, what travels
  int64_t versions = 0;  ///< of an asynchronous pipeline: weights of the past
  int64_t activations = 0;
  int64_t residuals = 0;  ///< what the compression of gradients keeps, in the host's memory
  int64_t copy = 0;       ///< the rank's share of the state, copied while a checkpoint is written

  int64_t without_copy() const {
    return parameters + gradients + optimizer + gathered + meetings + versions + activations +
           residuals;
  }
};

/// `whole` is the uncut model, which may have no memory (nn::Deferred). Nothing is run, and the
/// device need not be there.
Footprint footprint(const config::Config& config, nn::ModelImpl& whole, const Degrees& degrees,
                    c10::DeviceType device);

/// In which memory the tensors are.
struct Placement {
  bool gpu = false;      ///< parameters, gradients and activations
  bool offload = false;  ///< the optimizer's state stays in the host's memory
};

/// The lines of `trireme train --check`, the host's memory apart from the GPU's. `gathered_note`
/// says how long weights stay gathered.
std::string to_text(const Footprint& memory, Placement placement, const std::string& gathered_note);

}  // namespace trireme::train
