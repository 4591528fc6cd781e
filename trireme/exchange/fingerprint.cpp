#include "trireme/exchange/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/core/hash.h"
#include "trireme/core/units.h"
#include "trireme/format/dtype.h"
#include "trireme/format/load.h"

namespace trireme::exchange {

std::string fingerprint(const StartWeights& weights) {
  constexpr int64_t kBytes = 64 * core::kKiB;
  std::vector<std::string> names = weights.names;
  std::ranges::sort(names);
  std::string hashes;
  for (const std::string& name : names) {
    const auto tensor = weights.source->tensor(name).value();
    const int64_t each = format::dtype_bytes(tensor.dtype);
    Piece piece = format::whole_piece(name, tensor.shape);
    piece.count = std::min(piece.count, kBytes / each);
    std::string bytes(static_cast<std::size_t>(piece.count * each), '\0');
    if (piece.count > 0) weights.source->read(piece, tensor.dtype, bytes.data());
    hashes += fmt::format("{} {} {} {:016x}\n", name, tensor.dtype,
                          format::format_shape(tensor.shape), core::hash64(bytes));
  }
  return fmt::format("{:016x}", core::hash64(hashes));
}

}  // namespace trireme::exchange
