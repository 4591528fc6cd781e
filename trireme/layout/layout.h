#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trireme/layout/coord.h"
#include "trireme/layout/even_range.h"
#include "trireme/layout/piece.h"

namespace trireme {

/// A range of a dim that is cut independently of the dim's other sections, in whole grains.
struct Section {
  int64_t size = 0;
  int copies = 1;     ///< how many consecutive ranks of the axis hold each part
  int64_t grain = 1;  ///< what may not be cut, such as the rows of one head
  int64_t fine = 0;   ///< above 0: ranks that would hold copies share the part, in grains of this

  /// For `copies`: one copy, or, where there are more ranks than grains, as many as needed.
  static constexpr int kAsNeeded = 0;

  bool operator==(const Section&) const = default;
};

/// One cut of a tensor: along `dim`, over the ranks of `axis`.
///
///   fused q, k, v rows over tensor 4; 8 query heads, 2 kv heads, head_dim 16:
///     sections  q {128, 1, 16}          k {32, 2, 16}    v {32, 2, 16}
///     rank 0    heads 0 1               head 0           head 0
///     rank 1          2 3               head 0           head 0
///     rank 2              4 5                  1                1
///     rank 3                  6 7              1                1
///
/// (q as {.size = 128, .copies = kAsNeeded, .grain = 64, .fine = 16}, k and v with kAsNeeded say
/// the same for any number of ranks: the query heads of one kv head stay together.)
///
/// Without sections, the whole dim is one section of grain 1. The shard axis cuts no dim: it
/// divides the flat boxes that the cuts leave, as a Policy says (reduction.h).
struct Cut {
  Axis axis;
  int dim = 0;
  std::vector<Section> sections = {};

  bool operator==(const Cut&) const = default;
};

/// One box that a rank holds. A rank's own tensor has its boxes side by side; boxes that are also
/// neighbours in the whole are merged.
///
///   whole    | q0 q1 q2 q3 | k0 k1 |      over two ranks
///   rank 1   | q2 q3 | k1 |               boxes {q2 q3, at 0}, {k1, at 2}
struct LocalBox {
  Box box;                  ///< in the whole
  std::vector<int64_t> at;  ///< its offset in the rank's own tensor
  int copies = 1;           ///< ranks of a cut axis that hold it, this one among them

  bool operator==(const LocalBox&) const = default;
};

/// How one tensor is cut over the mesh: the description that initialisation, gradient reduction,
/// optimizer state, checkpoints and the prover share. Throws MisuseError, with the numbers, for a
/// layout that is not possible.
class Layout {
 public:
  /// `partial`: the axes over whose ranks the tensor's gradient must still be summed, because each
  /// rank computes only a part of it.
  explicit Layout(std::vector<int64_t> whole, std::vector<Cut> cuts = {},
                  std::vector<Axis> partial = {});

  /// What the rank at `coord` holds after the cuts, in order, in the whole and in the rank's own
  /// tensor. A later cut of a dim divides what the earlier one left. Empty boxes are dropped.
  std::vector<LocalBox> local_boxes(const Coord& coord, const Degrees& degrees) const;

  /// The shape of the rank's own tensor.
  std::vector<int64_t> local_shape(const Coord& coord, const Degrees& degrees) const;

  /// The rank's part of the dim, for each section that `axis` cuts; empty if it cuts nothing.
  std::vector<Range> section_ranges(Axis axis, const Coord& coord, const Degrees& degrees) const;

  /// Throws, with the numbers, unless every rank of these degrees gets something of every section.
  void check_fits(const Degrees& degrees) const;

  /// Range `index` when shard cuts a box of `numel` elements into `parts`; only the end of the
  /// last need not be a multiple of the border.
  static Range flat_range(int64_t numel, int parts, int index);

  const std::vector<int64_t>& whole() const { return whole_; }
  const std::vector<Cut>& cuts() const { return cuts_; }
  const std::vector<Axis>& partial() const { return partial_; }
  bool is_cut(Axis axis) const;

  bool operator==(const Layout&) const = default;

  /// Fused optimizer kernels round the elements behind the last full vector differently. With
  /// borders at these multiples, updating a shard gives the same bits as updating the whole.
  static constexpr int64_t kFlatBorder = 16;

 private:
  std::vector<int64_t> whole_;
  std::vector<Cut> cuts_;
  std::vector<Axis> partial_;
};

}  // namespace trireme
