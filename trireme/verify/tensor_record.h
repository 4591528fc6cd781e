#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/layout/layout.h"

namespace trireme::verify {

/// What of a step a tensor is, in the order of computation.
enum class TensorRole : uint8_t { Input, Weight, Buffer, Output, Loss, Gradient, Norm, Evaluation };

std::string_view to_string(TensorRole role);

/// How one rank's part of a tensor lies in the whole. Of a weight or a gradient the boxes are
/// known; of an output the rank knows its rows of the batch and the cuts of the other dims.
struct Coverage {
  std::vector<LocalBox> boxes = {};
  int64_t first_row = 0;
  std::vector<Cut> cuts = {};  ///< a dim of -1 is the last
  bool rows = false;           ///< is it by rows and cuts?
};

/// One rank's part of one tensor of a step.
struct TensorRecord {
  TensorRole role = TensorRole::Input;
  std::string name;
  at::Tensor value;  ///< float64; undefined: there is none (a gradient that did not come)
  Coverage coverage = {};
};

/// A number that every rank has.
TensorRecord scalar(TensorRole role, const std::string& name, double value);

/// The notes of every rank, on rank 0; nothing elsewhere. Collective.
std::vector<std::vector<TensorRecord>> gather(const std::vector<TensorRecord>& mine,
                                              const comm::Communicator& world);

/// The boxes of a note whose whole has this shape, for the rank at `coord`.
std::vector<LocalBox> boxes_of(const TensorRecord& record, const std::vector<int64_t>& whole,
                               const Coord& coord, const Degrees& degrees);

}  // namespace trireme::verify
