#pragma once

#include <cstdint>
#include <functional>

namespace trireme::exchange {

using BytesVisit = std::function<void(const char* bytes, int64_t count)>;

/// Runs `make(put)` on a thread of its own, which puts bytes; calls `use` with the same bytes in
/// the same order here, in blocks. So one thread reads and turns tensors over while the other
/// hashes and waits for the disk:
///
///     make   [read 0][read 1][read 2]  ...
///     use            [write 0  ][write 1  ][write 2  ]      at most a few blocks lie between them
///
/// What either throws ends both and is thrown here.
void read_ahead(const std::function<void(const BytesVisit& put)>& make, const BytesVisit& use);

}  // namespace trireme::exchange
