#include "trireme/verify/compare.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "trireme/core/error.h"
#include "trireme/nn/parameters.h"

namespace trireme::verify {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// A tensor that is 0 except for rounding is measured by this fraction of the largest tensor with
/// its role.
constexpr double kFloor = 1e-5;

const TensorRecord* find(const std::vector<TensorRecord>& records, TensorRole role,
                         const std::string& name) {
  const auto found = std::find_if(records.begin(), records.end(), [&](const TensorRecord& record) {
    return record.role == role && record.name == name;
  });
  return found == records.end() ? nullptr : &*found;
}

double largest(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.abs().max().item<double>() : 0;
}

/// The largest absolute difference of a rank's part; infinite if it cannot be compared.
double off(const ComparedTensor& tensor, const ComparedTensor::RankPart& part) {
  if (!part.value.defined() || !tensor.alone.defined())
    return part.value.defined() == tensor.alone.defined() ? 0 : kInfinite;
  double most = 0;
  for (const LocalBox& held : part.boxes) {
    const at::Tensor error =
        (nn::part_of(part.value, held) - nn::box_of(tensor.alone, held.box)).abs();
    const double worst = error.numel() == 0 ? 0 : error.max().item<double>();
    most = std::isfinite(worst) ? std::max(most, worst) : kInfinite;
  }
  return most;
}

/// Finds the boxes of a rank's part. Returns false unless they fill the part and lie inside the
/// whole.
bool locate(ComparedTensor::RankPart& part, const TensorRecord& record, const at::Tensor& whole,
            const Degrees& degrees) {
  if (record.value.dim() != whole.dim()) return false;
  try {
    part.boxes = boxes_of(record, whole.sizes().vec(), coord_of(part.rank, degrees), degrees);
  } catch (const MisuseError&) {  // a layout that does not fit the tensor
    return false;
  }
  int64_t count = 0;
  for (const LocalBox& held : part.boxes) {
    count += held.box.numel();
    for (std::size_t d = 0; d < held.at.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      if (held.at[d] + held.box.shape[d] > part.value.size(dim)) return false;
      if (held.box.offset[d] + held.box.shape[d] > whole.size(dim)) return false;
    }
  }
  return count == part.value.numel();
}

/// Do the parts of all ranks cover the whole tensor?
bool covered(const ComparedTensor& tensor) {
  at::Tensor seen = at::zeros(tensor.alone.sizes(), at::kBool);
  for (const ComparedTensor::RankPart& part : tensor.parts)
    for (const LocalBox& held : part.boxes) nn::box_of(seen, held.box).fill_(true);
  return seen.all().item<bool>();
}

/// The 2-norm of the error of all parts together. A box that several ranks hold counts once, with
/// its largest error.
double error_of_mesh(const ComparedTensor& tensor) {
  std::map<std::pair<std::vector<int64_t>, std::vector<int64_t>>, double> squares;
  for (const ComparedTensor::RankPart& part : tensor.parts) {
    for (const LocalBox& held : part.boxes) {
      const at::Tensor error = nn::part_of(part.value, held) - nn::box_of(tensor.alone, held.box);
      double& worst = squares[{held.box.offset, held.box.shape}];
      const double square = error.square().sum().item<double>();
      worst = std::isfinite(square) ? std::max(worst, square) : kInfinite;
    }
  }
  double sum = 0;
  for (const auto& [box, square] : squares) sum += square;
  return std::sqrt(sum);
}

}  // namespace

std::string_view to_string(MistakeKind kind) {
  switch (kind) {
    case MistakeKind::None: return "none";
    case MistakeKind::Data: return "data";
    case MistakeKind::Stale: return "stale";
    case MistakeKind::Missing: return "missing";
    case MistakeKind::Factor: return "factor";
    case MistakeKind::Partial: return "partial sum";
    case MistakeKind::Extra: return "extra reduction";
    case MistakeKind::Permutation: return "permutation";
    case MistakeKind::Dropout: return "dropout";
    case MistakeKind::Shape: return "shape";
    case MistakeKind::Unknown: return "unknown";
  }
  return "unknown";
}

std::vector<ComparedTensor> compare(const std::vector<TensorRecord>& alone,
                                    const std::vector<std::vector<TensorRecord>>& ranks,
                                    const Degrees& degrees) {
  std::map<TensorRole, double> magnitude;
  for (const TensorRecord& record : alone)
    magnitude[record.role] = std::max(magnitude[record.role], largest(record.value));
  std::vector<ComparedTensor> all;
  for (const TensorRecord& record : alone) {
    ComparedTensor one{
        .role = record.role, .name = record.name, .alone = record.value, .parts = {}};
    one.scale = std::max(largest(record.value), kFloor * magnitude[record.role]);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const TensorRecord* there = find(ranks[rank], record.role, record.name);
      if (there == nullptr) continue;
      ComparedTensor::RankPart part{static_cast<int>(rank), there->value, {}};
      if (record.value.defined() && there->value.defined())
        part.fits = locate(part, *there, record.value, degrees);
      const double error = part.fits ? off(one, part) : kInfinite;
      // Nothing equals a reference that is not finite.
      const bool measurable = one.scale > 0 && std::isfinite(one.scale);
      const double relative = error == 0 ? 0 : measurable ? error / one.scale : kInfinite;
      if (relative > one.difference || one.parts.empty()) {
        one.difference = std::max(one.difference, relative);
        one.worst_rank = static_cast<int>(rank);
      }
      one.parts.push_back(std::move(part));
    }
    // The caller lists outputs that no rank of the mesh has; every other tensor must be there.
    if (one.parts.empty() && one.role == TensorRole::Output) continue;
    const bool fits = std::all_of(one.parts.begin(), one.parts.end(),
                                  [](const ComparedTensor::RankPart& part) { return part.fits; });
    if (fits && one.alone.defined() && std::isfinite(one.difference) && !covered(one))
      one.difference = kInfinite;
    all.push_back(std::move(one));
  }
  return all;
}

std::vector<ComparedTensor> compare_rounded(const std::vector<TensorRecord>& exact,
                                            const std::vector<TensorRecord>& rounded,
                                            const std::vector<std::vector<TensorRecord>>& ranks,
                                            const Degrees& degrees, const Roundings& roundings) {
  std::vector<ComparedTensor> all = compare(exact, ranks, degrees);
  for (ComparedTensor& one : all) {
    const TensorRecord* alone = find(rounded, one.role, one.name);
    const bool known = one.alone.defined() && std::isfinite(one.difference);
    if (!known || alone == nullptr || !alone->value.defined()) continue;
    // What gradients lose on the wire shows in them and in what is updated with them.
    const bool travelled = one.role == TensorRole::Gradient || one.role == TensorRole::Norm ||
                           one.role == TensorRole::Weight || one.role == TensorRole::Evaluation;
    const double rounding =
        travelled ? std::max(roundings.compute, roundings.wire) : roundings.compute;
    const double error = error_of_mesh(one);
    const double bound = 2 * (alone->value - one.alone).norm().item<double>() +
                         4 * rounding * one.alone.norm().item<double>();
    const bool measurable = bound > 0 && std::isfinite(bound) && std::isfinite(error);
    one.difference = error == 0 ? 0 : measurable ? error / bound : kInfinite;
    if (one.role == TensorRole::Input && error > 0) one.difference = std::max(one.difference, 2.0);
  }
  return all;
}

}  // namespace trireme::verify
