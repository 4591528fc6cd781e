#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/ps/shared_array.h"
#include "trireme/ps/storage.h"
#include "trireme/ps/values.h"

namespace trireme::ps {

/// A dense range: values in one block, and for each row what the rule keeps.
///
/// An update goes through the rows once: it adds up what was pushed for the row, and applies it,
/// while the row is in the cache. If somebody still reads the values (a reply that is not sent yet,
/// a snapshot), the new ones are written to another block.
///
///   pushes   p0 | p1 | p2 ...          values  | row | row | ...
///                \   |   /                         |
///                 sum -> rule(row of values, row of state) -> the same block, or another one
template <class T>
class DenseStorage final : public Storage {
 public:
  DenseStorage(const Place& place, Begins begins)
      : place_(place),
        rows_(rows_of(*place.job, place.table, place.range)),
        values_(*place.memory, block_of(*place.job, place.table, place.range).elems) {
    const StateLayout layout = rule().state();
    size_t state = 0;
    for (const DenseRow& row : rows_) {
      state_begins_.push_back(state);
      state += layout.elems(row.elems());
    }
    state_begins_.push_back(state);
    state_ = SharedArray<T>(heap_, state);
    if (begins == Begins::WithImage) return;
    std::fill_n(state_.mutable_data(), state, T(0));
    fill_first();
  }

  void apply(std::span<const Gradient> pushes, const Step& step) override {
    const bool beside = !values_.is_alone();
    SharedArray<T> next = beside ? SharedArray<T>(*place_.memory, values_.size()) : values_;
    if (beside) fill_padding(next);
    if (!state_.is_alone()) state_ = copy_of(state_);
    std::vector<T> scratch;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const DenseRow& row = rows_[i];
      T* values = next.mutable_data() + row.offset;
      if (beside) std::copy_n(values_.data() + row.offset, row.elems(), values);
      add_up(pushes, row, scratch);
      rule().apply(Row<T>{{values, row.elems()}, state_of(i)}, std::span<T>(scratch),
                   {.rate = step.rate * row.factors.rate,
                    .divisor = step.divisor,
                    .decay = step.decay * row.factors.decay});
    }
    values_ = std::move(next);
  }

  double squares(std::span<const Gradient> pushes) const override {
    double sum = 0;
    std::vector<T> scratch;
    for (const DenseRow& row : rows_) {
      add_up(pushes, row, scratch);
      for (const T value : scratch) sum += static_cast<double>(value) * static_cast<double>(value);
    }
    return sum;
  }

  Payload read(std::span<const uint64_t>) const override { return values_.payload(); }
  size_t growth_bytes(std::span<const uint64_t>) const override { return 0; }
  size_t bytes() const override { return (values_.size() + state_.size()) * sizeof(T); }
  size_t rows() const override { return rows_.size(); }

  StorageImage image() const override {
    return {.sparse = {}, .parts = {values_.payload(), state_.payload()}};
  }
  void load(const StorageImage& image) override {
    if (image.parts.size() != 2 || image.parts[0].size() != values_.size() * sizeof(T) ||
        image.parts[1].size() != state_.size() * sizeof(T))
      throw CommError(
          fmt::format("sent another range than the {} values and {} numbers of state "
                      "that this one has",
                      values_.size(), state_.size()));
    if (!values_.is_alone()) values_ = SharedArray<T>(*place_.memory, values_.size());
    if (!state_.is_alone()) state_ = SharedArray<T>(heap_, state_.size());
    copy_bytes(image.parts[0].view(), values_.mutable_data());
    copy_bytes(image.parts[1].view(), state_.mutable_data());
  }

 private:
  const Rule& rule() const { return *place_.config().rule; }
  SharedArray<T> copy_of(const SharedArray<T>& other) {
    SharedArray<T> copy(heap_, other.size());
    std::copy_n(other.data(), other.size(), copy.mutable_data());
    return copy;
  }
  std::span<T> state_of(size_t row) {
    return {state_.mutable_data() + state_begins_[row],
            state_begins_[row + 1] - state_begins_[row]};
  }

  /// Elements between pieces are 0 for ever.
  void fill_padding(SharedArray<T>& values) const {
    size_t at = 0;
    for (const DenseRow& row : rows_) {
      std::fill(values.mutable_data() + at, values.mutable_data() + row.offset, T(0));
      at = row.offset + row.elems();
    }
    std::fill(values.mutable_data() + at, values.mutable_data() + values.size(), T(0));
  }

  void fill_first() {
    const TableConfig& config = place_.config();
    fill_padding(values_);
    for (const DenseRow& row : rows_) {
      const std::span<T> values(values_.mutable_data() + row.offset, row.elems());
      if (config.first_values) {
        config.first_values->fill(row.piece, values);
        continue;
      }
      const uint64_t begin = block_of(*place_.job, place_.table, place_.range).begin + row.offset;
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = config.init_scale == 0
                        ? T(0)
                        : static_cast<T>(config.init_scale *
                                         first_value(place_.job->seed, place_.table, 0, begin + i));
    }
  }

  static void add_up(std::span<const Gradient> pushes, const DenseRow& row,
                     std::vector<T>& scratch) {
    scratch.resize(row.elems());
    const size_t begin = row.offset * sizeof(T), bytes = row.elems() * sizeof(T);
    copy_bytes(pushes[0].values.substr(begin, bytes), scratch.data());
    for (const Gradient& push : pushes.subspan(1))
      add_values(push.values.substr(begin, bytes), std::span<T>(scratch));
  }

  Place place_;
  HeapMemory heap_;
  std::vector<DenseRow> rows_;
  SharedArray<T> values_, state_;
  std::vector<size_t> state_begins_;  ///< of each row, and the end
};

}  // namespace trireme::ps
