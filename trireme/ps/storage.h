#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/ps/job.h"
#include "trireme/ps/memory.h"
#include "trireme/ps/payload.h"

namespace trireme::ps {

/// Which part of the job a range holds.
struct Place {
  const JobConfig* job = nullptr;
  TableId table = 0;
  RangeId range = 0;
  std::shared_ptr<Memory> memory = std::make_shared<HeapMemory>();

  const TableConfig& config() const { return job->tables[table]; }
};

/// A range of a dense table: consecutive elements, which may be none.
struct Block {
  uint64_t begin = 0;
  uint64_t elems = 0;
};
Block block_of(const JobConfig& job, TableId table, RangeId range);

/// Some consecutive elements of one piece of a dense table, within a range. A rule sees them as one
/// row: few enough that all that it reads of them stays in the cache.
struct DenseRow {
  Piece piece;  ///< these elements alone; of a table without pieces: of a vector of its name
  uint64_t offset = 0;  ///< in the range's block
  PieceFactors factors = {};
  std::string stored_as = {};  ///< see TableConfig; empty: as the table's type
  uint64_t elems() const { return static_cast<uint64_t>(piece.count); }
};
std::vector<DenseRow> rows_of(const JobConfig& job, TableId table, RangeId range);

/// The range of a sparse table that a key lies in.
RangeId range_of(uint64_t key, uint32_t ranges);

/// Rows that lie together in memory.
constexpr size_t kSparseSlabRows = 256;

/// The rows of a sparse range.
struct SparseRows {
  std::vector<uint64_t> keys;
  std::vector<uint64_t> touched;  ///< if rows are evicted: when each was used last
  uint64_t touches = 0;
};

/// The values and the state of a range as they were at one moment. Taking it copies little: the
/// range writes beside what an image has.
struct StorageImage {
  SparseRows sparse;           ///< of a sparse range
  std::vector<Payload> parts;  ///< dense: values, state; sparse: slabs of rows, values and state
};

/// One push, as it lies in a message.
struct Gradient {
  std::span<const uint64_t> keys;  ///< of a sparse table
  std::string_view values;
};

/// The values of one range and what the rule keeps for them. Values travel as bytes of the table's
/// type; a dense range has one block and no keys.
class Storage {
 public:
  virtual ~Storage() = default;

  /// Applies the sum of these pushes, added up in their order.
  virtual void apply(std::span<const Gradient> pushes, const Step& step) = 0;
  /// The squares of that sum, added up.
  virtual double squares(std::span<const Gradient> pushes) const = 0;
  /// Reading a row that is not there yet gives what its first touch will create.
  virtual Payload read(std::span<const uint64_t> keys) const = 0;
  /// Bytes that a push of these keys would add.
  virtual size_t growth_bytes(std::span<const uint64_t> keys) const = 0;
  virtual size_t bytes() const = 0;
  virtual size_t rows() const = 0;

  virtual StorageImage image() const = 0;
  /// Throws CommError for an image that is not of such a range.
  virtual void load(const StorageImage& image) = 0;
};

/// Whether an image comes before anything else: then there is no need to write first values.
enum class Begins : uint8_t { WithFirstValues, WithImage };
std::unique_ptr<Storage> make_storage(const Place& place, Begins begins = Begins::WithFirstValues);

}  // namespace trireme::ps
