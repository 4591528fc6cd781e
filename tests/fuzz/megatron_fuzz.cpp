// Any bytes as Megatron's NAME.idx and NAME.bin: refused with an Error, or all of it can be read.
// The input is the length of the index (two bytes), the index, and the tokens.
#include <fcntl.h>

#include <algorithm>
#include <vector>

#include "fuzz/fuzz.h"
#include "trireme/core/error.h"
#include "trireme/format/tokens.h"

using namespace trireme;

namespace {

/// NAME.bin and NAME.idx as links to files in memory.
struct Pair {
  fuzz::MemoryFile bin, idx;
  std::string folder = "/tmp/trireme_fuzz_XXXXXX";

  Pair() {
    if (::mkdtemp(folder.data()) == nullptr ||
        ::symlink(bin.path().c_str(), (folder + "/t.bin").c_str()) != 0 ||
        ::symlink(idx.path().c_str(), (folder + "/t.idx").c_str()) != 0)
      std::abort();
  }
  ~Pair() {
    ::unlink((folder + "/t.bin").c_str());
    ::unlink((folder + "/t.idx").c_str());
    ::rmdir(folder.c_str());
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const Pair files;
  if (bytes < 2) return 0;
  const size_t index = std::min<size_t>(data[0] | data[1] << 8, bytes - 2);
  files.idx.put(data + 2, index);
  files.bin.put(data + 2 + index, bytes - 2 - index);
  try {
    const format::TokenFile tokens(files.folder + "/t.idx");
    std::vector<int64_t> part(static_cast<size_t>(std::min<int64_t>(tokens.size(), 5000)));
    tokens.read(tokens.size() - static_cast<int64_t>(part.size()),
                static_cast<int64_t>(part.size()), part.data());
    tokens.read(0, static_cast<int64_t>(part.size()), part.data());
  } catch (const Error&) {
  }
  return 0;
}
