#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/ps/job.h"

namespace trireme::ps {

/// Which part of the job a range holds.
struct Place {
  const JobConfig* job = nullptr;
  TableId table = 0;
  RangeId range = 0;

  const TableConfig& config() const { return job->tables[table]; }
};

/// A range of a dense table: consecutive elements.
struct Block {
  uint64_t begin = 0;
  uint64_t elems = 0;
};
Block block_of(const Place& place);

/// The range of a sparse table that a key lies in.
RangeId range_of(uint64_t key, uint32_t ranges);

/// The values of one range and what the rule keeps for them. Values travel as bytes of the table's
/// type; a dense range has one block and no keys.
class Storage {
 public:
  virtual ~Storage() = default;

  /// Applies pushed / divisor.
  struct Update {
    std::span<const uint64_t> keys;
    std::string_view pushed;
    double divisor = 1;
    double rate = 1;
  };
  virtual void apply(const Update& update) = 0;
  /// Reading a row that is not there yet gives what its first touch will create.
  virtual std::string read(std::span<const uint64_t> keys) const = 0;
  /// Bytes that a push of these keys would add.
  virtual size_t growth_bytes(std::span<const uint64_t> keys) const = 0;
  virtual size_t bytes() const = 0;
  virtual size_t rows() const = 0;

  virtual std::string save() const = 0;
  /// Throws CommError for bytes that save() of such a range did not write.
  virtual void load(std::string_view bytes) = 0;
};

std::unique_ptr<Storage> make_storage(const Place& place);

/// Adds up pushes of one clock, in the order of add(): the sum in lockstep.
class GradientSum {
 public:
  virtual ~GradientSum() = default;
  virtual void add(std::span<const uint64_t> keys, std::string_view pushed) = 0;
  virtual double squares() const = 0;
  virtual std::vector<uint64_t> keys() const = 0;
  virtual std::string values() const = 0;
};
std::unique_ptr<GradientSum> make_gradient_sum(const Place& place);

}  // namespace trireme::ps
