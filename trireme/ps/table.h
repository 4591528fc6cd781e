#pragma once

#include <concepts>
#include <ranges>
#include <span>
#include <string>

#include "trireme/ps/keys.h"
#include "trireme/ps/training_step.h"

namespace trireme::ps {

template <class T>
concept TableNumber = std::same_as<T, float> || std::same_as<T, double>;

/// Numbers in the caller's memory that a table reads: any array of float or double.
class ConstNumbers {
 public:
  template <std::ranges::contiguous_range Range>
  requires TableNumber<std::ranges::range_value_t<Range>> ConstNumbers(
      const Range& range)  // NOLINT: meant to convert
      : type_(sizeof(std::ranges::range_value_t<Range>) == sizeof(float) ? ValueType::Float32
                                                                         : ValueType::Float64),
        size_(std::ranges::size(range)),
        data_(std::ranges::data(range)) {}

  ValueType type() const { return type_; }
  size_t size() const { return size_; }
  const void* data() const { return data_; }

 private:
  ValueType type_;
  size_t size_;
  const void* data_;
};

/// Numbers in the caller's memory that a table writes.
class Numbers : public ConstNumbers {
 public:
  template <std::ranges::contiguous_range Range>
  requires(TableNumber<std::ranges::range_value_t<Range>> &&
           !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<Range>>>)
      Numbers(Range&& range)  // NOLINT: meant to convert
      : ConstNumbers(range), data_(std::ranges::data(range)) {}

  void* data() const { return data_; }

 private:
  void* data_;
};

/// A table of the job as a worker uses it; a cheap handle. Dense: all values in one piece. Sparse:
/// rows by key, in the order of the keys; a key that comes twice is read once, and its gradients
/// are added up. Rows are born from the seed when a gradient first names them.
///
///   std::vector<float> rows(keys.size() * dim);
///   clicks.pull(step, keys, rows).wait();
///   ...
///   step.weight = samples;
///   clicks.push(step, keys, sum_of_gradients);
///
/// Operations start at once, to all servers together; those of several tables overlap. They take
/// what they push with them. A pull writes to the caller's memory in `wait`.
class Table {
 public:
  /// Throws MisuseError if the job has no such table. The client must outlive it.
  Table(Client& client, const std::string& name);

  const TableConfig& config() const { return *config_; }

  /// What servers said about an operation.
  struct Outcome {
    uint64_t missed = 0;      ///< of a push: updates between the last pull and itself
    size_t repeated = 0;      ///< ranges that had this batch from another worker
    ClockTotals totals = {};  ///< lockstep: of the last clock that is in what was read
  };

  /// An operation under way. It may be dropped: a push is acknowledged before its work is done, and
  /// a pull then writes nothing.
  class Pending {
   public:
    /// Waits, with a line of progress every few seconds. Once. Throws LifeLost, or CommError if a
    /// server refuses.
    Outcome wait();

   private:
    friend class Table;
    Client* client_ = nullptr;
    const TrainingStep* step_ = nullptr;
    TableId table_ = 0;
    Clock clock_ = 0;
    bool reads_next_clock_ = false;  ///< a push-pull
    Client::Pending pending_ = {};
    std::vector<uint32_t> places_ = {};  ///< of Keys; empty: the rows lie as they come
    char* to_ = nullptr;                 ///< null: nothing is pulled
    bool only_changes_ = false;
  };

  /// `sums`: gradients, added up over the samples of the batch.
  Pending push(TrainingStep& step, ConstNumbers sums) const;
  Pending push(TrainingStep& step, const Keys& keys, ConstNumbers sums) const;

  [[nodiscard]] Pending pull(const TrainingStep& step, Numbers to) const;
  [[nodiscard]] Pending pull(const TrainingStep& step, const Keys& keys, Numbers to) const;

  /// Dense: writes what has changed since the last pull_changes of the table, if that was waited
  /// for and wrote to the same address; otherwise all values. They must lie there as it left them:
  /// another array that happens to come to lie at the same address (a local one) is taken for it.
  [[nodiscard]] Pending pull_changes(const TrainingStep& step, Numbers to) const;

  /// Both in one round trip: reads what a pull of the next clock reads.
  [[nodiscard]] Pending push_pull(TrainingStep& step, ConstNumbers sums, Numbers to) const;
  [[nodiscard]] Pending push_pull(TrainingStep& step, const Keys& keys, ConstNumbers sums,
                                  Numbers to) const;

 private:
  /// What one of the calls above was given.
  struct Call {
    const Keys* keys = nullptr;
    const ConstNumbers* sums = nullptr;
    const Numbers* to = nullptr;
    bool only_changes = false;
  };
  Pending start(const TrainingStep& step, const Call& call) const;
  Pending start_push(TrainingStep& step, const Call& call) const;
  Client::Operation operation(const TrainingStep& step, const Call& call) const;
  Pending pending(const TrainingStep& step, const Call& call, Client::Pending started) const;
  void check_call(const Call& call) const;
  Payload summed(const Call& call) const;

  Client* client_;
  TableId table_;
  const TableConfig* config_;
};

}  // namespace trireme::ps
