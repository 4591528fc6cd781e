#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

namespace trireme::net {

/// The keys and values of a store, and its operations. Every kind of store uses it, so that the
/// operations mean the same. Values are shared, so that a reply does not copy them.
class StoreTable {
 public:
  using Value = std::shared_ptr<const std::string>;

  /// Null if the key is absent.
  Value get(const std::string& key) const;
  void set(const std::string& key, std::string value);
  /// Throws MisuseError if the value is not a number or the sum does not fit.
  int64_t add(const std::string& key, int64_t delta);
  /// Returns the value afterwards; null if there is none.
  Value compare_and_set(const std::string& key, const std::string& expected, std::string desired);
  bool erase(const std::string& key) { return values_.erase(key) > 0; }

 private:
  std::unordered_map<std::string, Value> values_;
};

/// Throws a MisuseError that names the key if the key or a value is too large.
void check_sizes(const std::string& key, const std::string& value = {},
                 const std::string& other_value = {});

}  // namespace trireme::net
