#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/ps/large_pages.h"
#include "trireme/ps/prefetch.h"
#include "trireme/ps/row_index.h"
#include "trireme/ps/shared_array.h"
#include "trireme/ps/storage.h"
#include "trireme/ps/values.h"

namespace trireme::ps {

/// Rows by key. They lie in slabs, so that growing copies nothing and wastes at most one slab, and
/// a snapshot makes an update copy only the slab that it touches.
///
///   RowIndex:  key -> row        slab 0: | values state | values state | ... 256 rows
///                                slab 1: | ...
template <class T>
class SparseStorage final : public Storage {
 public:
  SparseStorage(const Place& place, Begins)
      : place_(place),
        elems_(place.config().elems),
        stride_(elems_ + place.config().rule->state().elems(elems_)) {}

  void apply(std::span<const Gradient> pushes, const Step& step) override {
    if (pushes.size() == 1) return apply_rows(pushes[0], step);
    const Sum sum = add_up(pushes);
    const std::span<const T> values(sum.values);
    apply_rows({sum.keys, {reinterpret_cast<const char*>(values.data()), values.size_bytes()}},
               step);
  }

  double squares(std::span<const Gradient> pushes) const override {
    double sum = 0;
    for (const T value : add_up(pushes).values)
      sum += static_cast<double>(value) * static_cast<double>(value);
    return sum;
  }

  Payload read(std::span<const uint64_t> keys) const override {
    const size_t bytes = keys.size() * elems_ * sizeof(T);
    const std::shared_ptr<void> memory = take_passing(*place_.memory, bytes);
    read_rows(keys, static_cast<T*>(memory.get()));
    return {memory, {static_cast<const char*>(memory.get()), bytes}};
  }

  size_t growth_bytes(std::span<const uint64_t> keys) const override {
    size_t fresh = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i + kAhead < keys.size()) index_.prefetch(keys[i + kAhead]);
      fresh += index_.find(keys[i]) == RowIndex::kNone ? 1 : 0;
    }
    const size_t most = place_.config().most_rows;
    const size_t room = most > 0 ? most - std::min(most, index_.size()) : fresh;
    return std::min(fresh, room) * stride_ * sizeof(T);
  }
  size_t bytes() const override {
    return slabs_.size() * kSlabRows * stride_ * sizeof(T) + index_.bytes() +
           rows_.keys.capacity() * sizeof(uint64_t);
  }
  size_t rows() const override { return index_.size(); }

  StorageImage image() const override {
    may_share_ = true;
    StorageImage image{.sparse = rows_, .parts = {}};
    for (const SharedArray<T>& slab : slabs_) image.parts.push_back(slab.payload());
    return image;
  }

  void load(const StorageImage& image) override {
    const size_t rows = image.sparse.keys.size(), slab_bytes = kSlabRows * stride_ * sizeof(T);
    const bool evicts = place_.config().most_rows > 0;
    if (image.parts.size() != (rows + kSlabRows - 1) / kSlabRows ||
        image.sparse.touched.size() != (evicts ? rows : 0) ||
        std::ranges::any_of(image.parts, [&](auto& slab) { return slab.size() != slab_bytes; }))
      throw CommError(
          fmt::format("sent {} rows in {} slabs, but a slab of this table has {} rows "
                      "in {} bytes",
                      rows, image.parts.size(), kSlabRows, slab_bytes));
    rows_ = image.sparse;
    slabs_.clear();
    for (const Payload& part : image.parts) {
      slabs_.push_back(new_slab(slabs_.size()));
      copy_bytes(part.view(), slabs_.back().mutable_data());
    }
    index_ = {};
    oldest_.clear();
    for (uint32_t row = 0; row < rows; ++row) {
      if (index_.find(rows_.keys[row]) != RowIndex::kNone)
        throw CommError(fmt::format("sent the row {} twice", rows_.keys[row]));
      index_.insert(rows_.keys[row], row);
      if (evicts) oldest_[rows_.touched[row]] = row;
    }
  }

 private:
  static constexpr size_t kSlabRows = kSparseSlabRows;
  /// So many small slabs are one large page: a smaller table takes no more than it needs.
  size_t few_slabs() const { return kLargePage / (kSlabRows * stride_ * sizeof(T)); }
  SharedArray<T> new_slab(size_t number) {
    Memory& memory = number < few_slabs() ? static_cast<Memory&>(heap_) : pool_;
    return {memory, kSlabRows * stride_};
  }

  /// Memory that is needed soon is asked for this many keys ahead.
  static constexpr size_t kAhead = 16;

  struct Sum {
    std::vector<uint64_t> keys;
    std::vector<T> values;
  };

  /// Adds up rows of several pushes, in the order in which keys appear first.
  Sum add_up(std::span<const Gradient> pushes) const {
    Sum sum;
    RowIndex found;
    for (const Gradient& push : pushes) {
      for (size_t i = 0; i < push.keys.size(); ++i) {
        uint32_t row = found.find(push.keys[i]);
        if (row == RowIndex::kNone) {
          row = static_cast<uint32_t>(sum.keys.size());
          found.insert(push.keys[i], row);
          sum.keys.push_back(push.keys[i]);
          sum.values.resize(sum.values.size() + elems_);
        }
        add_values(push.values.substr(i * elems_ * sizeof(T), elems_ * sizeof(T)),
                   std::span<T>(sum.values).subspan(row * elems_, elems_));
      }
    }
    return sum;
  }

  /// A rule may write to the gradient that it gets, so each row of it is copied first.
  void apply_rows(const Gradient& push, const Step& step) {
    const Rule& rule = *place_.config().rule;
    const bool evicts = place_.config().most_rows > 0;
    const std::vector<uint32_t> known = find_rows(push.keys);
    std::vector<T> gradient(elems_);
    for (size_t i = 0; i < push.keys.size(); ++i) {
      look_ahead(known, i);
      T* row = touch(push.keys[i], evicts ? RowIndex::kNone : known[i]);
      copy_bytes(push.values.substr(i * elems_ * sizeof(T), elems_ * sizeof(T)), gradient.data());
      rule.apply(Row<T>{{row, elems_}, {row + elems_, stride_ - elems_}}, std::span<T>(gradient),
                 step);
    }
  }

  void read_rows(std::span<const uint64_t> keys, T* values) const {
    const std::vector<uint32_t> known = find_rows(keys);
    for (size_t i = 0; i < keys.size(); ++i, values += elems_) {
      look_ahead(known, i);
      if (known[i] == RowIndex::kNone)
        fill_first(keys[i], values);
      else
        std::copy_n(row_at(known[i]), elems_, values);
    }
  }

  /// Which rows the keys have; kNone: none yet. A table is much larger than the caches: the index
  /// and the row of a key are two misses, which overlap with those of other keys.
  std::vector<uint32_t> find_rows(std::span<const uint64_t> keys) const {
    std::vector<uint32_t> rows(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i + kAhead < keys.size()) index_.prefetch(keys[i + kAhead]);
      rows[i] = index_.find(keys[i]);
    }
    return rows;
  }
  /// The first line of a row comes earlier than the others: with it the processor finds the page.
  void look_ahead(const std::vector<uint32_t>& rows, size_t i) const {
    const size_t far = i + 2 * kAhead, near = i + kAhead;
    if (far < rows.size() && rows[far] != RowIndex::kNone) prefetch(row_at(rows[far]));
    if (near < rows.size() && rows[near] != RowIndex::kNone)
      prefetch(row_at(rows[near]), stride_ * sizeof(T));
  }

  const T* row_at(uint32_t row) const {
    return slabs_[row / kSlabRows].data() + (row % kSlabRows) * stride_;
  }
  T* writable_row(uint32_t row) {
    SharedArray<T>& slab = slabs_[row / kSlabRows];
    if (may_share_ && !slab.is_alone()) {
      SharedArray<T> copy = new_slab(row / kSlabRows);
      std::copy_n(slab.data(), slab.size(), copy.mutable_data());
      slab = std::move(copy);
    }
    return slab.mutable_data() + (row % kSlabRows) * stride_;
  }

  void fill_first(uint64_t key, T* values) const {
    const double scale = place_.config().init_scale;
    for (size_t i = 0; i < elems_; ++i)
      values[i] = scale == 0
                      ? T(0)
                      : static_cast<T>(scale * first_value(place_.job->seed, place_.table, key, i));
  }

  uint32_t add_row(uint64_t key) {
    const auto row = static_cast<uint32_t>(rows_.keys.size());
    if (row % kSlabRows == 0) {
      slabs_.push_back(new_slab(slabs_.size()));
      std::fill_n(slabs_.back().mutable_data(), kSlabRows * stride_, T(0));
    }
    rows_.keys.push_back(key);
    if (place_.config().most_rows > 0) rows_.touched.push_back(0);
    index_.insert(key, row);
    return row;
  }

  /// Returns the row, created if need be, in the place of the row longest untouched if the range is
  /// full. `known`: the row of the key, or kNone if that must be looked up.
  T* touch(uint64_t key, uint32_t known) {
    const uint64_t most = place_.config().most_rows;
    uint32_t row = known == RowIndex::kNone ? index_.find(key) : known;
    const bool is_new = row == RowIndex::kNone;
    if (is_new && most > 0 && rows_.keys.size() >= most) {
      row = oldest_.begin()->second;
      index_.erase(rows_.keys[row]);
      index_.insert(key, row);
      rows_.keys[row] = key;
    } else if (is_new) {
      row = add_row(key);
    }
    T* values = writable_row(row);
    if (is_new) {
      std::fill_n(values, stride_, T(0));
      fill_first(key, values);
    }
    if (most > 0) {
      oldest_.erase(rows_.touched[row]);
      rows_.touched[row] = ++rows_.touches;
      oldest_[rows_.touches] = row;
    }
    return values;
  }

  Place place_;
  HeapMemory heap_;
  size_t elems_, stride_;
  SlabPool pool_{kSlabRows * stride_ * sizeof(T)};
  /// Whether somebody may hold a slab: before the first image nobody does. To ask each slab would
  /// be one more miss of the caches a row.
  mutable bool may_share_ = false;
  RowIndex index_;
  std::vector<SharedArray<T>> slabs_;
  SparseRows rows_;
  std::map<uint64_t, uint32_t> oldest_;  ///< with eviction only: rows by when they were touched
};

}  // namespace trireme::ps
