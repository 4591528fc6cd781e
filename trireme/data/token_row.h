#pragma once

#include <functional>
#include <optional>

#include "trireme/data/dataset.h"

namespace trireme::data {

/// Reads tokens [begin, begin + count) of a row of a stream.
using ReadTokens = std::function<void(int64_t begin, int64_t count, int64_t* to)>;

/// The tokens at some positions of a row, and as targets those after them. Nothing else of the row
/// is read, but for the end of the document before each range where `eod` is the token that ends
/// one: then the sample says where documents begin. A row begins with a document, whatever comes
/// before it.
Sample read_row(const ReadTokens& read, const Positions& positions, std::optional<int64_t> eod);

}  // namespace trireme::data
