#include "trireme/exchange/carried.h"

#include "trireme/core/units.h"
#include "trireme/format/file.h"

namespace trireme::exchange {

namespace {

constexpr int64_t kMostCarriedBytes = core::kGiB;

}  // namespace

int copy_files(std::span<const std::string_view> names, const std::string& from,
               const std::string& to) {
  int copied = 0;
  for (const std::string_view name : names) {
    const std::string source = from + "/" + std::string(name);
    if (!format::is_file(source)) continue;
    format::write_file(to + "/" + std::string(name), format::read_file(source, kMostCarriedBytes));
    ++copied;
  }
  return copied;
}

}  // namespace trireme::exchange
