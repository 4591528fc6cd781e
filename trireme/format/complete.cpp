// check_complete(): do the pieces of every tensor hold each of its elements once?
//
// First by boxes, without looking at elements:
//
//     box A  [ piece 0 | piece 1 ]      the pieces of a box are ranges that tile it
//     box B  [ piece 2 ]                no two boxes overlap
//     volume(A) + volume(B) = volume(tensor)
//
// Everything that a mesh saves passes this. Other tensors are checked by runs: each piece becomes
// runs of elements of the whole tensor, which are sorted and must follow each other without gap or
// overlap.
#include <algorithm>
#include <optional>
#include <utility>

#include "trireme/core/error.h"
#include "trireme/format/dtype.h"
#include "trireme/format/index.h"
#include "trireme/format/overlap.h"

namespace trireme::format {

namespace {

constexpr size_t kMostBoxes = 4096;              // each is compared with each
constexpr int64_t kMostRuns = int64_t{1} << 24;  // 256 MiB of them

using ElementRange = std::pair<int64_t, int64_t>;  // [first, second)

/// An element that no range holds, or more than one.
struct Flaw {
  int64_t at;
  bool twice;
};

/// The first element in [0, end) where the ranges leave a gap or overlap; nothing if they tile.
std::optional<Flaw> find_flaw(std::vector<ElementRange>& ranges, int64_t end) {
  std::ranges::sort(ranges);
  int64_t covered = 0;
  for (const auto& [begin, stop] : ranges) {
    if (begin == stop) continue;
    if (begin != covered) return Flaw{std::min(begin, covered), begin < covered};
    covered = stop;
  }
  if (covered != end) return Flaw{covered, false};
  return std::nullopt;
}

bool overlap(const Box& a, const Box& b) {
  for (size_t dim = 0; dim < a.shape.size(); ++dim)
    if (a.offset[dim] >= b.offset[dim] + b.shape[dim] ||
        b.offset[dim] >= a.offset[dim] + a.shape[dim])
      return false;
  return true;
}

/// Whether the pieces form boxes that tile the whole. If not, they may still cover it in another
/// way.
bool is_tiled_by_boxes(const TensorInfo& tensor, int64_t numel) {
  std::map<std::pair<std::vector<int64_t>, std::vector<int64_t>>, std::vector<ElementRange>> boxes;
  for (const StoredPiece& piece : tensor.pieces)
    if (piece.count > 0)
      boxes[{piece.offset, piece.shape}].emplace_back(piece.begin, piece.begin + piece.count);
  if (boxes.size() > kMostBoxes) return false;
  int64_t volume = 0;
  std::vector<Box> seen;
  for (auto& [place, ranges] : boxes) {
    Box box{place.first, place.second};
    if (find_flaw(ranges, box.numel())) return false;
    for (const Box& other : seen)
      if (overlap(box, other)) return false;
    volume += box.numel();  // disjoint, so no more than the whole's
    seen.push_back(std::move(box));
  }
  return volume == numel;
}

void check_runs(const std::string& name, const TensorInfo& tensor, int64_t numel,
                const std::string& path) {
  const BoxRange whole{std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape, 0, numel};
  std::vector<ElementRange> runs;
  int64_t most = 0;
  for (const StoredPiece& piece : tensor.pieces) {
    const BoxRange region{piece.offset, piece.shape, piece.begin, piece.count};
    most += most_common_runs(whole, region);
    if (most > kMostRuns)
      throw CheckpointError(
          fmt::format("{}: the pieces of tensor '{}' do not fit together", path, name));
    for_each_common_run(whole, region, [&](int64_t at, int64_t, int64_t count) {
      runs.emplace_back(at, at + count);
    });
  }
  if (const auto flaw = find_flaw(runs, numel))
    throw CheckpointError(fmt::format("{}: element {} of tensor '{}' {} is stored {}", path,
                                      flaw->at, name, format_shape(tensor.shape),
                                      flaw->twice ? "more than once" : "nowhere"));
}

}  // namespace

void check_complete(const Index& index, const std::string& path) {
  for (const auto& [name, tensor] : index.tensors) {
    const int64_t numel = checked_numel(tensor.shape).value_or(-1);
    core::check(numel >= 0, "tensor '{}' has the invalid shape {}", name,
                format_shape(tensor.shape));
    if (!is_tiled_by_boxes(tensor, numel)) check_runs(name, tensor, numel, path);
  }
}

}  // namespace trireme::format
