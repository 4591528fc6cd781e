#include "trireme/layout/layout.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme {

namespace {

std::vector<Section> sections_of(const Cut& cut, const std::vector<int64_t>& whole) {
  if (!cut.sections.empty()) return cut.sections;
  return {{.size = whole[static_cast<std::size_t>(cut.dim)]}};
}

void check_shape(const std::vector<int64_t>& whole) {
  int64_t numel = 1;
  for (const int64_t size : whole) {
    core::check(size >= 0, "Layout: [{}] has a dim below 0", fmt::join(whole, ", "));
    core::check(!__builtin_mul_overflow(numel, size, &numel),
                "Layout: [{}] has more than 2^63 elements", fmt::join(whole, ", "));
  }
}

void check_cut(const Cut& cut, const std::vector<int64_t>& whole) {
  core::check(cut.dim >= 0 && cut.dim < static_cast<int>(whole.size()),
              "Layout: {} cuts dim {} of [{}], which has {} dims", to_string(cut.axis), cut.dim,
              fmt::join(whole, ", "), whole.size());
  std::vector<int64_t> sizes;
  int64_t sum = 0;
  for (const Section& section : sections_of(cut, whole)) {
    core::check(section.size >= 0 && section.copies >= 0 && section.grain >= 1 && section.fine >= 0,
                "Layout: a section of size {}, copies {}, grain {} is not possible", section.size,
                section.copies, section.grain);
    core::check(section.size % section.grain == 0,
                "Layout: a section of {} cannot be cut in grains of {}", section.size,
                section.grain);
    core::check(section.fine == 0 || section.grain % section.fine == 0,
                "Layout: a grain of {} cannot be cut in grains of {}", section.grain, section.fine);
    core::check(!__builtin_add_overflow(sum, section.size, &sum),
                "Layout: the sections of dim {} are too large", cut.dim);
    sizes.push_back(section.size);
  }
  const int64_t dim_size = whole[static_cast<std::size_t>(cut.dim)];
  core::check(sum == dim_size, "Layout: the sections of dim {} are {} = {}, but the dim has {}",
              cut.dim, fmt::join(sizes, " + "), sum, dim_size);
}

/// A range of one dim that a rank holds.
struct HeldRange {
  int64_t begin = 0, count = 0;
  int copies = 1;
};

/// How many ranks of `degree` share one part of a section.
int copies_of(const Section& section, const Cut& cut, int degree) {
  if (section.copies > 0) {
    core::check(degree % section.copies == 0, "Layout: {} copies do not divide {} {}",
                section.copies, to_string(cut.axis), degree);
    return section.copies;
  }
  const int64_t grains = section.size / section.grain;
  if (grains == 0 || degree <= grains) return 1;
  core::check(
      degree % grains == 0,
      "Layout: {} of dim {} are {} grains of {}, which can neither be dealt nor copied evenly "
      "to {} {}",
      section.size, cut.dim, grains, section.grain, to_string(cut.axis), degree);
  return static_cast<int>(degree / grains);
}

/// The part of `held` inside one section that the rank at `place` of `degree` gets. The section
/// begins at `begin` of the dim.
///
///   12 grains over degree 4, two copies each:   rank 0, 1: grains 0-5   rank 2, 3: grains 6-11
///   with `fine`: no copies, but                 rank 0: 0-2  1: 3-5     rank 2: 6-8  3: 9-11
HeldRange cut_section(const HeldRange& held, int64_t begin, const Section& section, const Cut& cut,
                      int place, int degree) {
  const int64_t low = std::max(held.begin, begin);
  const int64_t high = std::min(held.begin + held.count, begin + section.size);
  const int64_t size = std::max<int64_t>(high - low, 0);
  core::check(size % section.grain == 0,
              "Layout: an earlier cut left {} of dim {}, which cannot be cut in grains of {}", size,
              cut.dim, section.grain);
  const int share = copies_of(section, cut, degree);
  const Range part = even_range(size / section.grain, degree / share, place / share);
  HeldRange left{low + part.begin * section.grain, part.count * section.grain, held.copies};
  if (section.fine > 0) {
    const Range inner = even_range(left.count / section.fine, share, place % share);
    left.begin += inner.begin * section.fine;
    left.count = inner.count * section.fine;
  } else {
    left.copies *= share;
  }
  return left;
}

/// What the rank holds of one dim: one range per section, where no other cut divides it.
std::vector<HeldRange> held_ranges(const Layout& layout, int dim, const Coord& coord,
                                   const Degrees& degrees) {
  std::vector<HeldRange> held = {{0, layout.whole()[static_cast<std::size_t>(dim)]}};
  for (const Cut& cut : layout.cuts()) {
    if (cut.dim != dim) continue;
    const int place = coord.of(cut.axis), degree = degrees.of(cut.axis);
    core::check(place >= 0 && place < degree, "Layout: there is no place {} along {} {}", place,
                to_string(cut.axis), degree);
    std::vector<HeldRange> left;
    for (const HeldRange& range : held) {
      int64_t begin = 0;
      for (const Section& section : sections_of(cut, layout.whole())) {
        left.push_back(cut_section(range, begin, section, cut, place, degree));
        begin += section.size;
      }
    }
    held = std::move(left);
  }
  return held;
}

/// Merges neighbouring ranges that the same ranks hold.
std::vector<HeldRange> joined(const std::vector<HeldRange>& parts) {
  std::vector<HeldRange> result;
  for (const HeldRange& part : parts) {
    const bool follows = !result.empty() &&
                         result.back().begin + result.back().count == part.begin &&
                         result.back().copies == part.copies;
    if (follows)
      result.back().count += part.count;
    else
      result.push_back(part);
  }
  return result;
}

}  // namespace

Layout::Layout(std::vector<int64_t> whole, std::vector<Cut> cuts, std::vector<Axis> partial)
    : whole_(std::move(whole)), cuts_(std::move(cuts)), partial_(std::move(partial)) {
  check_shape(whole_);
  for (const Cut& cut : cuts_) {
    core::check(cut.axis != Axis::Shard,
                "Layout: shard does not cut [{}] along a dim; a Policy says what it divides",
                fmt::join(whole_, ", "));
    check_cut(cut, whole_);
  }
}

bool Layout::is_cut(Axis axis) const {
  return std::ranges::any_of(cuts_, [axis](const Cut& cut) { return cut.axis == axis; });
}

std::vector<LocalBox> Layout::local_boxes(const Coord& coord, const Degrees& degrees) const {
  std::vector<LocalBox> result = {{{}, {}, 1}};
  for (int dim = 0; dim < static_cast<int>(whole_.size()); ++dim) {
    const auto parts = joined(held_ranges(*this, dim, coord, degrees));
    std::vector<LocalBox> wider;
    for (const LocalBox& one : result) {
      int64_t at = 0;
      for (const HeldRange& part : parts) {
        LocalBox next = one;
        next.box.offset.push_back(part.begin);
        next.box.shape.push_back(part.count);
        next.at.push_back(at);
        next.copies *= part.copies;
        if (part.count > 0) wider.push_back(std::move(next));
        at += part.count;
      }
    }
    result = std::move(wider);
  }
  return result;
}

std::vector<int64_t> Layout::local_shape(const Coord& coord, const Degrees& degrees) const {
  std::vector<int64_t> shape;
  for (int dim = 0; dim < static_cast<int>(whole_.size()); ++dim) {
    int64_t size = 0;
    for (const HeldRange& part : held_ranges(*this, dim, coord, degrees)) size += part.count;
    shape.push_back(size);
  }
  return shape;
}

std::vector<Range> Layout::section_ranges(Axis axis, const Coord& coord,
                                          const Degrees& degrees) const {
  std::vector<Range> parts;
  for (const Cut& cut : cuts_) {
    if (cut.axis != axis) continue;
    for (const HeldRange& part : held_ranges(*this, cut.dim, coord, degrees))
      parts.push_back({part.begin, part.count});
    break;
  }
  return parts;
}

void Layout::check_fits(const Degrees& degrees) const {
  for (const Cut& cut : cuts_) {
    const int degree = degrees.of(cut.axis);
    int64_t begin = 0;
    for (const Section& section : sections_of(cut, whole_)) {
      const HeldRange whole{begin, section.size};
      for (int place = 0; place < degree && section.size > 0; ++place) {
        const int64_t unit = section.fine > 0 ? section.fine : section.grain;
        core::check(cut_section(whole, begin, section, cut, place, degree).count > 0,
                    "Layout: {} of dim {}, in grains of {}, cannot be dealt to {} {}: a rank would "
                    "hold nothing",
                    section.size, cut.dim, unit, to_string(cut.axis), degree);
      }
      begin += section.size;
    }
  }
}

Range Layout::flat_range(int64_t numel, int parts, int index) {
  const Range blocks = even_range((numel + kFlatBorder - 1) / kFlatBorder, parts, index);
  const int64_t begin = std::min(blocks.begin * kFlatBorder, numel);
  return {begin, std::min((blocks.begin + blocks.count) * kFlatBorder, numel) - begin};
}

}  // namespace trireme
