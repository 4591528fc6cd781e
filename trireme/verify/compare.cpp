#include "trireme/verify/compare.h"

#include <torch/torch.h>

#include <algorithm>
#include <limits>

#include "trireme/nn/parameters.h"

namespace trireme::verify {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// What is 0 but for rounding is measured by this part of the largest of its kind.
constexpr double kFloor = 1e-5;

const Note* find(const std::vector<Note>& notes, Stage stage, const std::string& name) {
  const auto found = std::find_if(notes.begin(), notes.end(), [&](const Note& note) {
    return note.stage == stage && note.name == name;
  });
  return found == notes.end() ? nullptr : &*found;
}

double largest(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.abs().max().item<double>() : 0;
}

/// The largest difference of a rank's part, absolute; infinite where it cannot be compared.
double off(const Compared& tensor, const Compared::Part& part) {
  if (!part.value.defined() || !tensor.alone.defined())
    return part.value.defined() == tensor.alone.defined() ? 0 : kInfinite;
  double most = 0;
  for (const Held& held : part.held) {
    const at::Tensor error =
        (nn::part_of(part.value, held) - tensor.alone.index(slices(held.box))).abs();
    const double worst = error.numel() == 0 ? 0 : error.max().item<double>();
    most = std::isfinite(worst) ? std::max(most, worst) : kInfinite;
  }
  return most;
}

/// Does what the rank has fill what its layout says?
bool fills(const Compared::Part& part) {
  int64_t count = 0;
  for (const Held& held : part.held) {
    count += held.box.numel();
    for (std::size_t d = 0; d < held.at.size(); ++d)
      if (held.at[d] + held.box.shape[d] > part.value.size(static_cast<int64_t>(d))) return false;
  }
  return count == part.value.numel();
}

}  // namespace

std::vector<at::indexing::TensorIndex> slices(const Box& box) {
  std::vector<at::indexing::TensorIndex> index;
  for (std::size_t d = 0; d < box.offset.size(); ++d)
    index.emplace_back(at::indexing::Slice(box.offset[d], box.offset[d] + box.shape[d]));
  if (index.empty()) index.emplace_back(at::indexing::Ellipsis);
  return index;
}

std::string_view to_string(Kind kind) {
  switch (kind) {
    case Kind::None: return "none";
    case Kind::Data: return "data";
    case Kind::Stale: return "stale";
    case Kind::Missing: return "missing";
    case Kind::Factor: return "factor";
    case Kind::Partial: return "partial sum";
    case Kind::Extra: return "extra reduction";
    case Kind::Permutation: return "permutation";
    case Kind::Dropout: return "dropout";
    case Kind::Shape: return "shape";
    case Kind::Unknown: return "unknown";
  }
  return "unknown";
}

std::vector<Compared> compare(const std::vector<Note>& alone,
                              const std::vector<std::vector<Note>>& ranks, const Degrees& degrees) {
  std::map<Stage, double> magnitude;
  for (const Note& note : alone)
    magnitude[note.stage] = std::max(magnitude[note.stage], largest(note.value));
  std::vector<Compared> all;
  for (const Note& note : alone) {
    Compared one{.stage = note.stage, .name = note.name, .alone = note.value, .parts = {}};
    one.scale = std::max(largest(note.value), kFloor * magnitude[note.stage]);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const Note* there = find(ranks[rank], note.stage, note.name);
      if (there == nullptr) continue;
      Compared::Part part{static_cast<int>(rank), there->value, {}};
      if (note.value.defined() && there->value.defined()) {
        part.fits = there->value.dim() == note.value.dim();
        if (part.fits)
          part.held = boxes_of(*there, note.value.sizes().vec(),
                               coord_of(static_cast<int>(rank), degrees), degrees);
        part.fits = part.fits && fills(part);
      }
      const double error = part.fits ? off(one, part) : kInfinite;
      const double relative = error == 0 ? 0 : one.scale == 0 ? kInfinite : error / one.scale;
      if (relative > one.difference || one.parts.empty()) {
        one.difference = std::max(one.difference, relative);
        one.worst_rank = static_cast<int>(rank);
      }
      one.parts.push_back(std::move(part));
    }
    if (!one.parts.empty()) all.push_back(std::move(one));
  }
  return all;
}

}  // namespace trireme::verify
