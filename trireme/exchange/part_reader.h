#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/exchange/table.h"
#include "trireme/format/tensor_source.h"

namespace trireme::exchange {

/// Reads their tensors out of ours, block by block in the order of the elements. At most some 64
/// MiB are in memory, and stay for the next tensor: fresh memory takes as long to get as the copy.
class PartReader {
 public:
  explicit PartReader(format::TensorSource& from) : from_(from) {}

  using Visit = std::function<void(const char* elems, int64_t count)>;
  void read(const MappedTensor& tensor, const Part& part, const Visit& visit);

 private:
  /// Where it is at work.
  struct Job {
    const MappedTensor& tensor;
    const Part& part;
    std::string dtype;
    int64_t elem_bytes, columns;
    const Visit& visit;
  };
  /// Elements of rows [row, row + rows), columns [column, column + columns) of ours.
  const char* fetch(const Job& job, int64_t row, int64_t rows, int64_t column, int64_t columns);
  char* turned(int64_t bytes);
  void read_rows(const Job& job);
  void read_transposed(const Job& job);
  void read_rotary(const Job& job);
  void read_padding(const Job& job);

  format::TensorSource& from_;
  std::vector<char> block_, turned_;
};

}  // namespace trireme::exchange
