#pragma once

#include <cstdint>
#include <string>

namespace trireme::verify {

/// Mistakes that can be made on purpose, to see the prover work.
enum class Mistake : uint8_t { None, Average, Reduce, Order, Stale, Data, Dropout };

/// "average", "reduce" ...; throws ConfigError for another word.
Mistake mistake_of(const std::string& word);

}  // namespace trireme::verify
