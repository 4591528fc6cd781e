#include "trireme/net/store_table.h"

#include <algorithm>

#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/net/bytes.h"
#include "trireme/net/store.h"

namespace trireme::net {

void check_sizes(const std::string& key, const std::string& value, const std::string& other_value) {
  core::check(key.size() <= kMaxKeyBytes, "store: key '{}' has {} bytes; the limit is {}",
              printable(key), key.size(), kMaxKeyBytes);
  const size_t bytes = std::max(value.size(), other_value.size());
  core::check(bytes <= kMaxValueBytes, "store: the value of key '{}' has {} bytes; the limit is {}",
              printable(key), bytes, kMaxValueBytes);
}

StoreTable::Value StoreTable::get(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : found->second;
}

void StoreTable::set(const std::string& key, std::string value) {
  values_[key] = std::make_shared<const std::string>(std::move(value));
}

int64_t StoreTable::add(const std::string& key, int64_t delta) {
  const Value value = get(key);
  const auto before = value ? core::parse_int(*value) : 0;
  core::check(before.has_value(), "store: add to key '{}': its value '{}' is not a whole number",
              printable(key), value ? printable(*value) : "");
  int64_t after = 0;
  core::check(!__builtin_add_overflow(*before, delta, &after),
              "store: add {} to key '{}': {} plus that does not fit 64 bits", delta, printable(key),
              *before);
  set(key, std::to_string(after));
  return after;
}

StoreTable::Value StoreTable::compare_and_set(const std::string& key, const std::string& expected,
                                              std::string desired) {
  const Value value = get(key);
  const bool is_as_expected = value ? !expected.empty() && *value == expected : expected.empty();
  if (is_as_expected) set(key, std::move(desired));
  return get(key);
}

}  // namespace trireme::net
