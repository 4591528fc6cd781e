#include "trireme/ps/storage.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "trireme/core/hash.h"
#include "trireme/layout/even_range.h"
#include "trireme/ps/archive.h"
#include "trireme/ps/row_index.h"
#include "trireme/ps/values.h"

namespace trireme::ps {

Block block_of(const Place& place) {
  const trireme::Range part =
      even_range(static_cast<int64_t>(place.config().elems), place.job->ranges, place.range);
  return {.begin = static_cast<uint64_t>(part.begin), .elems = static_cast<uint64_t>(part.count)};
}

RangeId range_of(uint64_t key, uint32_t ranges) {
  return static_cast<RangeId>(core::hash64(&key, sizeof key) % ranges);
}

namespace {

template <class T>
class DenseStorage final : public Storage {
 public:
  explicit DenseStorage(const Place& place)
      : rule_(place.config().rule), values_(block_of(place).elems) {
    const TableConfig& config = place.config();
    const uint64_t begin = block_of(place).begin;
    state_.resize(rule_->state_elems(values_.size()));
    if (config.init_scale == 0) return;
    for (size_t i = 0; i < values_.size(); ++i)
      values_[i] = static_cast<T>(config.init_scale *
                                  first_value(place.job->seed, place.table, 0, begin + i));
  }

  void apply(const Update& update) override {
    std::vector<T> gradient = values_of<T>(update.pushed);
    if (update.divisor != 1)
      for (T& value : gradient) value /= static_cast<T>(update.divisor);
    rule_->apply(Row<T>{values_, state_}, gradient, update.rate);
  }
  std::string read(std::span<const uint64_t>) const override { return bytes_of_values<T>(values_); }
  size_t growth_bytes(std::span<const uint64_t>) const override { return 0; }
  size_t bytes() const override { return (values_.size() + state_.size()) * sizeof(T); }
  size_t rows() const override { return 1; }

  std::string save() const override {
    return bytes_of_values<T>(values_) + bytes_of_values<T>(state_);
  }
  void load(std::string_view bytes) override {
    if (bytes.size() != this->bytes())
      throw CommError(fmt::format("sent a range of {} bytes, but this table's ranges have {}",
                                  bytes.size(), this->bytes()));
    const size_t value_bytes = values_.size() * sizeof(T);
    values_ = values_of<T>(bytes.substr(0, value_bytes));
    state_ = values_of<T>(bytes.substr(value_bytes));
  }

 private:
  RulePtr rule_;
  std::vector<T> values_, state_;
};

/// Rows lie in slabs, so that growing copies nothing and wastes at most one slab.
///
///   RowIndex:  key -> row        slab 0: | values state | values state | ... 256 rows
///                                slab 1: | ...
template <class T>
class SparseStorage final : public Storage {
 public:
  explicit SparseStorage(const Place& place)
      : place_(place),
        rule_(place.config().rule),
        elems_(place.config().elems),
        stride_(elems_ + rule_->state_elems(elems_)) {}

  void apply(const Update& update) override {
    std::vector<T> gradient = values_of<T>(update.pushed);
    if (update.divisor != 1)
      for (T& value : gradient) value /= static_cast<T>(update.divisor);
    for (size_t i = 0; i < update.keys.size(); ++i) {
      T* row = touch(update.keys[i]);
      rule_->apply(Row<T>{{row, elems_}, {row + elems_, stride_ - elems_}},
                   std::span<const T>(gradient).subspan(i * elems_, elems_), update.rate);
    }
  }

  std::string read(std::span<const uint64_t> keys) const override {
    std::vector<T> values(keys.size() * elems_);
    for (size_t i = 0; i < keys.size(); ++i) {
      const uint32_t row = index_.find(keys[i]);
      if (row == RowIndex::kNone)
        fill_first(keys[i], values.data() + i * elems_);
      else
        std::copy_n(row_at(row), elems_, values.data() + i * elems_);
    }
    return bytes_of_values<T>(values);
  }

  size_t growth_bytes(std::span<const uint64_t> keys) const override {
    const auto fresh = std::ranges::count_if(
        keys, [&](uint64_t key) { return index_.find(key) == RowIndex::kNone; });
    return static_cast<size_t>(fresh) * stride_ * sizeof(T);
  }
  size_t bytes() const override {
    return slabs_.size() * kSlabRows * stride_ * sizeof(T) + index_.bytes() +
           keys_.size() * sizeof(uint64_t);
  }
  size_t rows() const override { return index_.size(); }

  std::string save() const override {
    Writer writer;
    writer(touches_, static_cast<uint64_t>(keys_.size()));
    for (uint32_t row = 0; row < keys_.size(); ++row)
      writer(keys_[row], touched_.empty() ? uint64_t{0} : touched_[row],
             bytes_of_values<T>(std::span<const T>(row_at(row), stride_)));
    return writer.take();
  }

  void load(std::string_view bytes) override {
    Reader reader(bytes);
    uint64_t rows = 0;
    reader(touches_, rows);
    for (uint64_t i = 0; i < rows; ++i) {
      uint64_t key = 0, touched = 0;
      std::string row;
      reader(key, touched, row);
      if (row.size() != stride_ * sizeof(T) || index_.find(key) != RowIndex::kNone)
        throw CommError(fmt::format("sent the row {} with {} bytes, but this table's rows have {}",
                                    key, row.size(), stride_ * sizeof(T)));
      std::memcpy(add_row(key), row.data(), row.size());
      if (place_.config().most_rows > 0) {
        touched_[i] = touched;
        oldest_[touched] = static_cast<uint32_t>(i);
      }
    }
    reader.finish();
  }

 private:
  static constexpr size_t kSlabRows = 256;

  T* row_at(uint32_t row) const {
    return slabs_[row / kSlabRows].get() + (row % kSlabRows) * stride_;
  }

  void fill_first(uint64_t key, T* values) const {
    const double scale = place_.config().init_scale;
    for (size_t i = 0; i < elems_; ++i)
      values[i] = scale == 0
                      ? T(0)
                      : static_cast<T>(scale * first_value(place_.job->seed, place_.table, key, i));
  }

  T* add_row(uint64_t key) {
    const auto row = static_cast<uint32_t>(keys_.size());
    if (row % kSlabRows == 0) slabs_.push_back(std::make_unique<T[]>(kSlabRows * stride_));
    keys_.push_back(key);
    if (place_.config().most_rows > 0) touched_.push_back(0);
    index_.insert(key, row);
    return row_at(row);
  }

  /// Returns the row, created if need be, in the place of the row longest untouched if the range is
  /// full.
  T* touch(uint64_t key) {
    const uint64_t most = place_.config().most_rows;
    uint32_t row = index_.find(key);
    if (row == RowIndex::kNone) {
      if (most > 0 && keys_.size() >= most) {
        row = oldest_.begin()->second;
        index_.erase(keys_[row]);
        index_.insert(key, row);
        keys_[row] = key;
        std::fill_n(row_at(row), stride_, T(0));
      } else {
        add_row(key);
        row = static_cast<uint32_t>(keys_.size() - 1);
      }
      fill_first(key, row_at(row));
    }
    if (most > 0) {
      oldest_.erase(touched_[row]);
      touched_[row] = ++touches_;
      oldest_[touches_] = row;
    }
    return row_at(row);
  }

  Place place_;
  RulePtr rule_;
  size_t elems_, stride_;
  RowIndex index_;
  std::vector<std::unique_ptr<T[]>> slabs_;
  std::vector<uint64_t> keys_;
  uint64_t touches_ = 0;
  std::vector<uint64_t> touched_;        ///< with eviction only: when a row was last touched
  std::map<uint64_t, uint32_t> oldest_;  ///< and the rows in that order
};

template <class T>
class TypedSum final : public GradientSum {
 public:
  explicit TypedSum(const Place& place)
      : dense_(place.config().kind == TableKind::Dense),
        elems_(dense_ ? block_of(place).elems : place.config().elems) {}

  void add(std::span<const uint64_t> keys, std::string_view pushed) override {
    const std::vector<T> values = values_of<T>(pushed);
    const size_t rows = dense_ ? 1 : keys.size();
    for (size_t i = 0; i < rows; ++i) {
      std::vector<T>& sum = rows_[dense_ ? 0 : keys[i]];
      sum.resize(elems_);
      for (size_t j = 0; j < elems_; ++j) sum[j] += values[i * elems_ + j];
    }
  }
  double squares() const override {
    double sum = 0;
    for (const auto& [key, row] : rows_)
      for (const T value : row) sum += static_cast<double>(value) * static_cast<double>(value);
    return sum;
  }
  std::vector<uint64_t> keys() const override {
    std::vector<uint64_t> keys;
    if (!dense_)
      for (const auto& [key, row] : rows_) keys.push_back(key);
    return keys;
  }
  std::string values() const override {
    std::string bytes;
    for (const auto& [key, row] : rows_) bytes += bytes_of_values<T>(row);
    return bytes;
  }

 private:
  bool dense_;
  size_t elems_;
  std::map<uint64_t, std::vector<T>> rows_;
};

template <template <class> class Typed, class Base>
std::unique_ptr<Base> make_typed(const Place& place) {
  if (place.config().type == ValueType::Float32) return std::make_unique<Typed<float>>(place);
  return std::make_unique<Typed<double>>(place);
}

}  // namespace

std::unique_ptr<Storage> make_storage(const Place& place) {
  return place.config().kind == TableKind::Dense ? make_typed<DenseStorage, Storage>(place)
                                                 : make_typed<SparseStorage, Storage>(place);
}

std::unique_ptr<GradientSum> make_gradient_sum(const Place& place) {
  return make_typed<TypedSum, GradientSum>(place);
}

}  // namespace trireme::ps
