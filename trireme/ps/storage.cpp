#include "trireme/ps/storage.h"

#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/layout/even_range.h"
#include "trireme/ps/dense_storage.h"
#include "trireme/ps/sparse_storage.h"

namespace trireme::ps {

Block block_of(const JobConfig& job, TableId table, RangeId range) {
  const TableConfig& config = job.tables[table];
  const uint64_t grain = config.pieces.empty() ? 1 : kGrain;
  const trireme::Range part =
      even_range(static_cast<int64_t>(config.elems / grain), job.ranges, range);
  return {.begin = static_cast<uint64_t>(part.begin) * grain,
          .elems = static_cast<uint64_t>(part.count) * grain};
}

std::vector<DenseRow> rows_of(const JobConfig& job, TableId table, RangeId range) {
  constexpr uint64_t kMostElems = 1 << 16;
  const TableConfig& config = job.tables[table];
  const Block block = block_of(job, table, range);
  const auto whole = static_cast<int64_t>(config.elems);
  const std::vector<Piece> vector = {{config.name, {whole}, {0}, {whole}, 0, whole}};
  const std::vector<Piece>& pieces = config.pieces.empty() ? vector : config.pieces;
  const std::vector<uint64_t> begins =
      config.pieces.empty() ? std::vector<uint64_t>{0} : piece_begins(config);
  std::vector<DenseRow> rows;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const uint64_t piece_end = begins[i] + static_cast<uint64_t>(pieces[i].count);
    const uint64_t end = std::min(block.begin + block.elems, piece_end);
    for (uint64_t at = std::max(block.begin, begins[i]); at < end;) {
      // Cut where the whole piece would be, too, so that other ranges give the same rows' borders.
      const uint64_t next =
          std::min(end, begins[i] + ((at - begins[i]) / kMostElems + 1) * kMostElems);
      DenseRow row{.piece = pieces[i], .offset = at - block.begin};
      row.piece.begin += static_cast<int64_t>(at - begins[i]);
      row.piece.count = static_cast<int64_t>(next - at);
      if (!config.factors.empty()) row.factors = config.factors[i];
      if (!config.stored_as.empty()) row.stored_as = config.stored_as[i];
      rows.push_back(std::move(row));
      at = next;
    }
  }
  return rows;
}

RangeId range_of(uint64_t key, uint32_t ranges) {
  return static_cast<RangeId>(core::hash64(&key, sizeof key) % ranges);
}

namespace {

template <template <class> class Typed>
std::unique_ptr<Storage> make_typed(const Place& place, Begins begins) {
  if (place.config().type == ValueType::Float32)
    return std::make_unique<Typed<float>>(place, begins);
  return std::make_unique<Typed<double>>(place, begins);
}

}  // namespace

std::unique_ptr<Storage> make_storage(const Place& place, Begins begins) {
  return place.config().kind == TableKind::Dense ? make_typed<DenseStorage>(place, begins)
                                                 : make_typed<SparseStorage>(place, begins);
}

}  // namespace trireme::ps
