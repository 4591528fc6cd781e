#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <ranges>
#include <span>
#include <vector>

namespace trireme::ps {

/// The keys of a batch, any of them as often as it likes, and the distinct ones among them: only
/// those travel. Made from any array of 64-bit integers. Make it once for a pull and a push of the
/// same rows.
///
///   keys       7 9 7 7 4      the rows of a pull and of a push lie in this order
///   places     0 1 0 0 2
///   distinct   7 9 4          in the order in which they come first
class Keys {
 public:
  template <std::ranges::contiguous_range Range>
  requires(std::integral<std::ranges::range_value_t<Range>> &&
           sizeof(std::ranges::range_value_t<Range>) == sizeof(uint64_t))
      Keys(const Range& keys)  // NOLINT: meant to convert
      : Keys(std::as_bytes(std::span(std::ranges::data(keys), std::ranges::size(keys)))) {}

  size_t size() const { return places_.size(); }
  const std::vector<uint64_t>& distinct() const { return distinct_; }
  /// Which of the distinct keys each key is.
  const std::vector<uint32_t>& places() const { return places_; }
  bool has_repeats() const { return distinct_.size() < places_.size(); }

 private:
  explicit Keys(std::span<const std::byte> bytes);

  std::vector<uint64_t> distinct_;
  std::vector<uint32_t> places_;
};

/// The first key that has come before.
std::optional<uint64_t> first_repeated(std::span<const uint64_t> keys);

}  // namespace trireme::ps
