#include "trireme/layout/layout.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/layout/even_part.h"

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
    core::check(section.size >= 0 && section.copies >= 1 && section.grain >= 1,
                "Layout: a section of size {}, copies {}, grain {} cannot be", section.size,
                section.copies, section.grain);
    core::check(section.size % section.grain == 0,
                "Layout: a section of {} cannot be cut in grains of {}", section.size,
                section.grain);
    core::check(!__builtin_add_overflow(sum, section.size, &sum),
                "Layout: the sections of dim {} are too large", cut.dim);
    sizes.push_back(section.size);
  }
  const int64_t dim_size = whole[static_cast<std::size_t>(cut.dim)];
  core::check(sum == dim_size, "Layout: the sections of dim {} are {} = {}, but the dim has {}",
              cut.dim, fmt::join(sizes, " + "), sum, dim_size);
}

/// The part of `box` inside one section, which begins at `begin` of the dim, that is left to the
/// rank at `place` of `degree`.
Box cut_section(Box box, std::size_t dim, int64_t begin, const Section& section, int place,
                int degree) {
  const int64_t low = std::max(box.offset[dim], begin);
  const int64_t high = std::min(box.offset[dim] + box.shape[dim], begin + section.size);
  const int64_t size = std::max<int64_t>(high - low, 0);
  core::check(size % section.grain == 0,
              "Layout: an earlier cut left {} of dim {}, which cannot be cut in grains of {}", size,
              dim, section.grain);
  const Part part =
      even_part(size / section.grain, degree / section.copies, place / section.copies);
  box.offset[dim] = low + part.begin * section.grain;
  box.shape[dim] = part.count * section.grain;
  return box;
}

std::vector<Box> cut_boxes(const std::vector<Box>& boxes, const Cut& cut,
                           const std::vector<Section>& sections, int place, int degree) {
  core::check(place >= 0 && place < degree, "Layout: there is no place {} along {} {}", place,
              to_string(cut.axis), degree);
  std::vector<Box> result;
  for (const Box& box : boxes) {
    int64_t begin = 0;
    for (const Section& section : sections) {
      core::check(degree % section.copies == 0, "Layout: {} copies do not divide {} {}",
                  section.copies, to_string(cut.axis), degree);
      Box left = cut_section(box, static_cast<std::size_t>(cut.dim), begin, section, place, degree);
      if (left.numel() > 0) result.push_back(std::move(left));
      begin += section.size;
    }
  }
  return result;
}

/// Range `index` of `parts` of a box of `numel` elements; only the end of the last need not be a
/// multiple of the border.
Part flat_part(int64_t numel, int parts, int index) {
  constexpr int64_t kBorder = Layout::kFlatBorder;
  const Part blocks = even_part((numel + kBorder - 1) / kBorder, parts, index);
  const int64_t begin = std::min(blocks.begin * kBorder, numel);
  return {begin, std::min((blocks.begin + blocks.count) * kBorder, numel) - begin};
}

}  // namespace

Layout::Layout(std::vector<int64_t> whole, std::vector<Cut> cuts, std::vector<Axis> partial)
    : whole_(std::move(whole)), cuts_(std::move(cuts)), partial_(std::move(partial)) {
  check_shape(whole_);
  for (std::size_t i = 0; i < cuts_.size(); ++i) {
    if (cuts_[i].axis != Axis::Shard) {
      check_cut(cuts_[i], whole_);
      continue;
    }
    core::check(i + 1 == cuts_.size(), "Layout: the shard cut is number {} of {}, but must be last",
                i + 1, cuts_.size());
    core::check(cuts_[i].sections.empty(), "Layout: the shard cut is flat, but has {} sections",
                cuts_[i].sections.size());
  }
}

bool Layout::is_cut(Axis axis) const {
  return std::ranges::any_of(cuts_, [axis](const Cut& cut) { return cut.axis == axis; });
}

std::vector<Box> Layout::boxes(const Coord& coord, const Degrees& degrees) const {
  std::vector<Box> result = {{std::vector<int64_t>(whole_.size(), 0), whole_}};
  if (result[0].numel() == 0) result.clear();
  for (const Cut& cut : cuts_) {
    if (cut.axis == Axis::Shard) continue;
    result =
        cut_boxes(result, cut, sections_of(cut, whole_), coord.of(cut.axis), degrees.of(cut.axis));
  }
  return result;
}

std::vector<Piece> Layout::pieces(std::string_view name, const Coord& coord,
                                  const Degrees& degrees) const {
  int parts = 1, index = 0;
  if (is_cut(Axis::Shard) && degrees.shard > 1) {
    const bool experts = is_cut(Axis::Expert);
    parts = experts ? degrees.data() / degrees.expert : degrees.shard;
    index = experts ? rest_of(coord, degrees) : coord.shard;
  }
  std::vector<Piece> result;
  for (Box& box : boxes(coord, degrees)) {
    const Part range = flat_part(box.numel(), parts, index);
    if (range.count == 0) continue;
    result.push_back({std::string(name), whole_, std::move(box.offset), std::move(box.shape),
                      range.begin, range.count});
  }
  return result;
}

}  // namespace trireme
