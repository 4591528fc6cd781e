// Any bytes as a file of MNIST's kind, plain or .gz, of images or labels: refused with an Error, or
// all of it can be read.
#include <numeric>

#include "fuzz/fuzz.h"
#include "trireme/core/error.h"
#include "trireme/format/images/idx.h"

using namespace trireme;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const fuzz::MemoryFile file;
  file.put(data, bytes);
  for (const int dims : {1, 3}) {
    try {
      const format::IdxFile idx(file.path(), dims);
      fuzz::must(static_cast<int>(idx.sizes().size()) == dims && idx.row_bytes() > 0);
      const int64_t rows = idx.sizes()[0];
      fuzz::must(rows * idx.row_bytes() <= static_cast<int64_t>(bytes) * 1100);  // gzip's limit
      idx.check_whole();
      volatile int64_t sum = 0;
      for (int64_t row = 0; row < rows; ++row)
        sum = sum + std::accumulate(idx.row(row), idx.row(row) + idx.row_bytes(), int64_t{0});
    } catch (const Error&) {
    }
  }
  return 0;
}
