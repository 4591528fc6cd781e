#pragma once

#include <memory>

#include "trireme/format/tokenizer.h"

namespace trireme::format {

/// Tokens 0 to 255 are the bytes; 256, <|endoftext|>, ends a document. No text spells it.
std::unique_ptr<const Tokenizer> make_byte_tokenizer();

}  // namespace trireme::format
