#include "trireme/ps/snapshot_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>

#include "trireme/core/error.h"
#include "trireme/format/dtype.h"
#include "trireme/format/folder.h"
#include "trireme/ps/archive.h"
#include "trireme/ps/stored_values.h"

namespace trireme::ps {

namespace {

using Bytes = std::span<const std::byte>;

Bytes bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string dtype_of(ValueType type) {
  return type == ValueType::Float32 ? "F32" : "F64";
}

/// An item that is a whole tensor.
format::PartItem whole_item(const std::string& name, std::vector<int64_t> shape,
                            const std::string& dtype, std::vector<Bytes> memory) {
  return {format::whole_piece(name, shape), dtype, std::move(memory)};
}

std::string part_name(uint64_t snapshot, TableId table = 0, RangeId range = 0) {
  return fmt::format("part-{}-{}-{}.safetensors", snapshot, table, range);
}

/// Consecutive rows of one piece become one item.
void add_row(std::vector<format::PartItem>& items, Piece piece, const std::string& dtype,
             std::string_view memory) {
  if (!items.empty()) {
    Piece& last = items.back().piece;
    if (last.name == piece.name && last.offset == piece.offset &&
        last.begin + last.count == piece.begin) {
      last.count += piece.count;
      items.back().memory.push_back(bytes_of(memory));
      return;
    }
  }
  items.push_back({std::move(piece), dtype, {bytes_of(memory)}});
}

/// Rows that were counted in several ranges, each from 1 on, get numbers of one count. Those of one
/// range keep their order; between ranges it is by how often each was touched.
void count_anew(SparseRows& rows) {
  std::vector<size_t> order(rows.touched.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t row) { return rows.touched[row]; });
  rows.touches = 0;
  for (const size_t row : order) rows.touched[row] = ++rows.touches;
}

}  // namespace

std::string SnapshotFiles::folder_of(const SnapshotPart& part) const {
  return options_.folder + "/" + format::step_name(static_cast<int64_t>(part.step));
}

std::string SnapshotFiles::range_name(const SnapshotPart& part, uint32_t range) const {
  return fmt::format("{}/range-{}", job_.tables[part.table].name, range);
}

void SnapshotFiles::begin(const SnapshotOrder& order) const {
  format::begin(options_.folder, static_cast<int64_t>(order.step));
}

/// Values, then each array of the state, each in the order of the rows.
std::vector<format::PartItem> SnapshotFiles::dense_items(const SnapshotPart& part,
                                                         const StorageImage& image,
                                                         std::deque<std::string>& converted) const {
  const TableConfig& table = job_.tables[part.table];
  const StateLayout layout = table.rule->state();
  const std::string dtype = dtype_of(table.type);
  const size_t width = ps::bytes_of(table.type);
  const auto rows = rows_of(job_, part.table, part.range);
  std::vector<format::PartItem> items;
  for (const DenseRow& row : rows) {
    const std::string_view values =
        image.parts[0].view().substr(row.offset * width, row.elems() * width);
    if (row.stored_as.empty())
      add_row(items, row.piece, dtype, values);
    else
      add_row(items, row.piece, row.stored_as,
              converted.emplace_back(to_stored(values, row.stored_as)));
  }
  for (size_t array = 0; array < layout.arrays.size(); ++array) {
    size_t begin = 0;
    for (const DenseRow& row : rows) {
      Piece piece = row.piece;
      piece.name = fmt::format("optim/{}/{}", layout.arrays[array], piece.name);
      add_row(
          items, std::move(piece), dtype,
          image.parts[1].view().substr((begin + array * row.elems()) * width, row.elems() * width));
      begin += layout.elems(row.elems());
    }
  }
  if (layout.scalars == 0) return items;
  std::vector<Bytes> scalars;
  size_t begin = 0;
  for (const DenseRow& row : rows) {
    const size_t arrays = layout.arrays.size() * row.elems();
    scalars.push_back(
        bytes_of(image.parts[1].view().substr((begin + arrays) * width, layout.scalars * width)));
    begin += layout.elems(row.elems());
  }
  items.push_back(whole_item(
      "ps/" + range_name(part, part.range) + "/scalars",
      {static_cast<int64_t>(rows.size()), static_cast<int64_t>(layout.scalars)}, dtype, scalars));
  return items;
}

std::vector<format::PartItem> SnapshotFiles::sparse_items(const SnapshotPart& part,
                                                          const StorageImage& image) const {
  const TableConfig& table = job_.tables[part.table];
  const size_t stride = table.elems + table.rule->state().elems(table.elems);
  const auto rows = static_cast<int64_t>(image.sparse.keys.size());
  size_t left = static_cast<size_t>(rows) * stride * ps::bytes_of(table.type);
  std::vector<Bytes> slabs;  // the last may have room for more rows
  for (const Payload& slab : image.parts) {
    slabs.push_back(bytes_of(slab.view().substr(0, std::min(left, slab.size()))));
    left -= slabs.back().size();
  }
  const auto numbers = [](const std::vector<uint64_t>& all) {
    return std::vector{std::as_bytes(std::span(all))};
  };
  const std::string name = range_name(part, part.range);
  std::vector<format::PartItem> items{
      whole_item(name + "/keys", {rows}, "I64", numbers(image.sparse.keys)),
      whole_item(name + "/rows", {rows, static_cast<int64_t>(stride)}, dtype_of(table.type),
                 std::move(slabs))};
  if (table.most_rows > 0)
    items.push_back(whole_item(name + "/touched", {rows}, "I64", numbers(image.sparse.touched)));
  return items;
}

std::string SnapshotFiles::save(const SnapshotPart& part, const RangeState::Image& image) const {
  const bool dense = job_.tables[part.table].kind == TableKind::Dense;
  std::deque<std::string> converted;
  auto items =
      dense ? dense_items(part, image.storage, converted) : sparse_items(part, image.storage);
  std::string fields;
  net::put(fields, image.storage.sparse.touches);
  fields += image.fields;
  items.push_back(whole_item("ps/" + range_name(part, part.range),
                             {static_cast<int64_t>(fields.size())}, "U8", {bytes_of(fields)}));
  std::erase_if(items, [](const format::PartItem& item) { return item.piece.count == 0; });
  const std::string file = part_name(part.snapshot, part.table, part.range);
  return format::write_part(folder_of(part) + ".tmp", file, static_cast<int64_t>(part.step), items)
      .dump();
}

void SnapshotFiles::complete(const SnapshotOrder& order,
                             const std::vector<std::string>& contents) const {
  const std::string whole =
      options_.folder + "/" + format::step_name(static_cast<int64_t>(order.step));
  const std::string folder = whole + ".tmp";
  // A manager that died between the rename and its log asks again.
  const std::string part = "/" + part_name(order.snapshot);
  if (!format::is_file(folder + part) && format::is_file(whole + part)) return;
  std::vector<core::Json> notes;
  for (const std::string& text : contents) notes.push_back(core::parse_json(text, folder));
  const auto index =
      format::index_of_parts(folder, static_cast<int64_t>(order.step), notes,
                             options_.extra ? options_.extra(order) : core::Json::object());
  // An earlier order of the same step may have left parts.
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(folder, error))
    if (!index.files.contains(file.path().filename())) format::remove_all(file.path());
  if (error) throw CheckpointError(fmt::format("cannot read {}: {}", folder, error.message()));
  format::write_file(folder + "/" + format::kIndexName, format::to_text(index));
  format::commit(options_.folder, static_cast<int64_t>(order.step));
}

/// The folder may have later steps, of another run. Those are not this job's to remove, but nor do
/// they make its own newest snapshot an old one.
void SnapshotFiles::prune(const SnapshotOrder& newest) const {
  const std::vector<int64_t> steps = format::list(options_.folder);
  const auto since = std::ranges::count_if(
      steps, [&](int64_t step) { return step >= static_cast<int64_t>(newest.step); });
  format::prune(options_.folder, std::max<int64_t>(options_.keep, since), start_step());
}

void SnapshotFiles::abandon(const SnapshotOrder& order) const {
  format::remove_all(options_.folder + "/" + format::step_name(static_cast<int64_t>(order.step)) +
                     ".tmp");
}

/// The checkpoint that the job starts from, if it is one of the folder: processes that are started
/// again still look at it.
std::optional<int64_t> SnapshotFiles::start_step() const {
  for (const int64_t step : format::list(options_.folder))
    if (options_.folder + "/" + format::step_name(step) == job_.start_from) return step;
  return {};
}

std::optional<RangeState::Image> SnapshotFiles::load(const SnapshotPart& part) const {
  if (part.snapshot == 0 && job_.start_from.empty()) return {};
  format::Checkpoint from(part.snapshot == 0 ? job_.start_from : folder_of(part));
  return load_from(from, part);
}

/// Of a job that starts from a checkpoint, only the values and the batches that are in them.
RangeState::Image SnapshotFiles::load_from(format::Checkpoint& from,
                                           const SnapshotPart& part) const {
  RangeState fresh({&job_, part.table, part.range});
  RangeState::Image image = fresh.image();
  const bool dense = job_.tables[part.table].kind == TableKind::Dense;
  image.storage = dense ? load_dense(from, part) : load_sparse(from, part);
  const std::string name = "ps/" + range_name(part, part.range);
  const auto found = from.index().tensors.find(name);
  if (found == from.index().tensors.end()) return image;
  std::string fields(static_cast<size_t>(found->second.shape[0]), '\0');
  from.read(format::whole_piece(name, found->second.shape), "U8", fields.data());
  net::ByteReader reader(fields);
  const auto touches = reader.number<uint64_t>();
  if (part.snapshot != 0) {
    image.storage.sparse.touches = touches;
    image.fields = reader.rest();
    return image;
  }
  const core::Json& extra = from.index().extra;
  const bool same_batches = extra.contains("ps") &&
                            extra.at("ps").value("workers", 0U) == job_.workers &&
                            extra.at("ps").value("ranges", 0U) == job_.ranges;
  if (same_batches) fresh.adopt_batches(reader.rest());
  image.fields = fresh.image().fields;
  return image;
}

StorageImage SnapshotFiles::load_dense(format::Checkpoint& from, const SnapshotPart& part) const {
  const TableConfig& table = job_.tables[part.table];
  const StateLayout layout = table.rule->state();
  const std::string dtype = dtype_of(table.type);
  const size_t width = ps::bytes_of(table.type);
  const auto rows = rows_of(job_, part.table, part.range);
  std::string values(block_of(job_, part.table, part.range).elems * width, '\0'), state;
  const auto& tensors = from.index().tensors;
  const core::Json& extra = from.index().extra;
  const std::string scalars_name = "ps/" + range_name(part, part.range) + "/scalars";
  const auto scalars = tensors.find(scalars_name);
  const bool same_rows =
      scalars != tensors.end() && scalars->second.shape[0] == static_cast<int64_t>(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const DenseRow& row = rows[i];
    if (row.stored_as.empty()) {
      from.read(row.piece, dtype, values.data() + row.offset * width);
    } else {
      std::string stored(row.elems() * static_cast<size_t>(format::dtype_bytes(row.stored_as)),
                         '\0');
      from.read(row.piece, row.stored_as, stored.data());
      values.replace(row.offset * width, row.elems() * width, from_stored(stored, row.stored_as));
    }
    const size_t begin = state.size();
    state.resize(begin + layout.elems(row.elems()) * width);
    for (size_t array = 0; array < layout.arrays.size(); ++array) {
      Piece piece = row.piece;
      piece.name = fmt::format("optim/{}/{}", layout.arrays[array], piece.name);
      if (tensors.contains(piece.name))
        from.read(piece, dtype, state.data() + begin + array * row.elems() * width);
    }
    char* const own = state.data() + begin + layout.arrays.size() * row.elems() * width;
    if (layout.scalars > 0 && same_rows) {
      const auto count = static_cast<int64_t>(layout.scalars);
      Piece piece = format::whole_piece(scalars_name, scalars->second.shape);
      piece.begin = static_cast<int64_t>(i) * count;
      piece.count = count;
      from.read(piece, dtype, own);
    } else if (layout.scalars == 1 && extra.contains("optimizer")) {
      // As a run without servers counts its updates.
      const double steps = extra.at("optimizer").at("steps").value(row.piece.name, 0.0);
      const auto single = static_cast<float>(steps);
      std::memcpy(own,
                  table.type == ValueType::Float32 ? static_cast<const void*>(&single) : &steps,
                  width);
    }
  }
  return {.sparse = {}, .parts = {std::move(values), std::move(state)}};
}

/// The snapshot may have another number of ranges: every range takes its keys out of all of them.
StorageImage SnapshotFiles::load_sparse(format::Checkpoint& from, const SnapshotPart& part) const {
  constexpr size_t kSlabRows = kSparseSlabRows;
  const TableConfig& table = job_.tables[part.table];
  const size_t stride = table.elems + table.rule->state().elems(table.elems);
  const size_t row_bytes = stride * ps::bytes_of(table.type);
  const auto& tensors = from.index().tensors;
  StorageImage image;
  std::string slabs;
  for (uint32_t range = 0;; ++range) {
    const std::string name = range_name(part, range);
    if (!tensors.contains("ps/" + name)) break;
    if (part.snapshot != 0 && range != part.range) continue;  // this job's ranges are the same
    const auto keys = tensors.find(name + "/keys");
    if (keys == tensors.end()) continue;  // no rows
    const auto rows = static_cast<size_t>(keys->second.shape[0]);
    std::vector<uint64_t> all(rows), touched(table.most_rows > 0 ? rows : 0);
    from.read(format::whole_piece(keys->first, keys->second.shape), "I64", all.data());
    if (table.most_rows > 0)
      from.read(format::whole_piece(name + "/touched", keys->second.shape), "I64", touched.data());
    const Piece whole = format::whole_piece(
        name + "/rows", {static_cast<int64_t>(rows), static_cast<int64_t>(stride)});
    const auto is_mine = [&](size_t row) {
      return part.snapshot != 0 || range_of(all[row], job_.ranges) == part.range;
    };
    for (size_t row = 0; row < rows; ++row) {
      if (!is_mine(row)) continue;
      const size_t begin = row;  // of a run, which is read at once
      for (; row < rows && is_mine(row); ++row) {
        image.sparse.keys.push_back(all[row]);
        if (table.most_rows > 0) image.sparse.touched.push_back(touched[row]);
      }
      Piece piece = whole;
      piece.begin = static_cast<int64_t>(begin * stride);
      piece.count = static_cast<int64_t>((row - begin) * stride);
      const size_t bytes = (row - begin) * row_bytes;
      slabs.resize(slabs.size() + bytes);
      from.read(piece, dtype_of(table.type), slabs.data() + slabs.size() - bytes);
    }
  }
  if (part.snapshot == 0) count_anew(image.sparse);
  const size_t slab_bytes = kSlabRows * row_bytes;
  slabs.resize((image.sparse.keys.size() + kSlabRows - 1) / kSlabRows * slab_bytes);
  const Payload whole(std::move(slabs));
  for (size_t begin = 0; begin < whole.size(); begin += slab_bytes)
    image.parts.push_back(whole.slice(begin, slab_bytes));
  return image;
}

}  // namespace trireme::ps
