#include "trireme/exchange/part_reader.h"

#include <algorithm>
#include <cstring>

#include "trireme/core/units.h"
#include "trireme/exchange/rows.h"
#include "trireme/exchange/transpose.h"
#include "trireme/format/dtype.h"

namespace trireme::exchange {

namespace {

constexpr int64_t kPlainBytes = 4 * core::kMiB;  // stays in a cache
/// A transposed tensor is read in strips of columns: wide ones, where it is larger than this.
constexpr int64_t kTransposedBytes = 32 * core::kMiB;

}  // namespace

void PartReader::read(const MappedTensor& tensor, const Part& part, const Visit& visit) {
  const std::string dtype = from_.tensor(tensor.name)->dtype;
  const Job job{tensor, part, dtype, format::dtype_bytes(dtype), tensor.columns(), visit};
  if (part.form == Form::Transposed) return read_transposed(job);
  if (part.form == Form::Rotary)
    read_rotary(job);
  else
    read_rows(job);
  read_padding(job);
}

const char* PartReader::fetch(const Job& job, int64_t row, int64_t rows, int64_t column,
                              int64_t columns) {
  const int64_t count = rows * columns, bytes = count * job.elem_bytes;
  Piece piece{job.tensor.name, job.tensor.shape, {row, column}, {rows, columns}, 0, count};
  if (job.tensor.shape.size() == 1) {
    piece.offset.pop_back();
    piece.shape.pop_back();
  } else if (job.tensor.shape.size() == 3) {  // a part is inside of one expert
    const int64_t each = job.tensor.shape[1];
    piece.offset = {row / each, row % each, column};
    piece.shape = {1, rows, columns};
  }
  if (static_cast<int64_t>(block_.size()) < bytes) block_.resize(static_cast<std::size_t>(bytes));
  from_.read(piece, job.dtype, block_.data());
  return block_.data();
}

char* PartReader::turned(int64_t bytes) {
  if (static_cast<int64_t>(turned_.size()) < bytes) turned_.resize(static_cast<std::size_t>(bytes));
  return turned_.data();
}

void PartReader::read_rows(const Job& job) {
  const int64_t at_once = std::max<int64_t>(1, kPlainBytes / (job.columns * job.elem_bytes));
  for (int64_t done = 0; done < job.part.rows; done += at_once) {
    const int64_t rows = std::min(at_once, job.part.rows - done);
    job.visit(fetch(job, job.part.row + done, rows, 0, job.columns), rows * job.columns);
  }
}

/// Our columns are their rows.
void PartReader::read_transposed(const Job& job) {
  const int64_t rows = job.part.rows;
  const int64_t at_once = std::max<int64_t>(1, kTransposedBytes / (rows * job.elem_bytes));
  for (int64_t done = 0; done < job.columns; done += at_once) {
    const int64_t width = std::min(at_once, job.columns - done);
    const char* block = fetch(job, job.part.row, rows, done, width);
    char* out = turned(rows * width * job.elem_bytes);
    transpose(block, rows, width, job.elem_bytes, out);
    job.visit(out, rows * width);
  }
}

/// Head by head: their rows are ours, dealt out.
void PartReader::read_rotary(const Job& job) {
  const int64_t rows = job.part.head_rows, row_bytes = job.columns * job.elem_bytes;
  for (int64_t done = 0; done < job.part.rows; done += rows) {
    const char* block = fetch(job, job.part.row + done, rows, 0, job.columns);
    char* out = turned(rows * row_bytes);
    for (int64_t i = 0; i < rows; ++i)
      std::memcpy(out + halves_row(i, rows) * row_bytes, block + i * row_bytes,
                  static_cast<std::size_t>(row_bytes));
    job.visit(out, rows * job.columns);
  }
}

/// The rows that a larger vocabulary has after ours.
void PartReader::read_padding(const Job& job) {
  const int64_t missing = job.part.shape[0] - job.part.rows;
  if (missing == 0) return;
  MeanOfRows sum(job.dtype, job.columns);
  for (int64_t done = 0; done < job.part.rows; done += sum.rows_at_once()) {
    const int64_t rows = std::min(sum.rows_at_once(), job.part.rows - done);
    sum.add(fetch(job, job.part.row + done, rows, 0, job.columns), rows);
  }
  const std::vector<char> mean = sum.mean();
  for (int64_t i = 0; i < missing; ++i) job.visit(mean.data(), job.columns);
}

}  // namespace trireme::exchange
