#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/layout/layout.h"

namespace trireme::verify {

/// The role of a tensor in a step, in the order of computation.
enum class TensorRole : uint8_t { Input, Weight, Buffer, Output, Loss, Gradient, Norm, Evaluation };

std::string_view to_string(TensorRole role);

/// Which elements of a whole tensor a rank's part covers. For weights and gradients the boxes are
/// known. For an output the rank knows only its rows of the batch and the cuts of the other dims.
struct Coverage {
  std::vector<LocalBox> boxes = {};
  int64_t first_row = 0;
  std::vector<Cut> cuts = {};         ///< a dim of -1 is the last
  bool rows = false;                  ///< given by rows, cuts and positions, not by boxes
  std::vector<Range> positions = {};  ///< of dim 1, where ranks share sequences; none: all
};

/// One rank's part of one tensor of a step.
struct TensorRecord {
  TensorRole role = TensorRole::Input;
  std::string name;
  at::Tensor value;  ///< float64; undefined for a gradient that did not come
  Coverage coverage = {};
};

/// The record of a number that every rank has.
TensorRecord scalar(TensorRole role, const std::string& name, double value);

/// Gathers the records of every rank on rank 0; returns nothing elsewhere. Collective.
std::vector<std::vector<TensorRecord>> gather(const std::vector<TensorRecord>& mine,
                                              const comm::Communicator& world);

/// The boxes of a record of the rank at `coord`, in a whole tensor of this shape.
std::vector<LocalBox> boxes_of(const TensorRecord& record, const std::vector<int64_t>& whole,
                               const Coord& coord, const Degrees& degrees);

}  // namespace trireme::verify
