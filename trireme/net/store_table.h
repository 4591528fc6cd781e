#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

namespace trireme::net {

/// The keys and values of a store, and what its operations do to them: the one place that says so,
/// for every kind of store. Values are shared, so that a reply need not copy them.
class StoreTable {
 public:
  using Value = std::shared_ptr<const std::string>;

  /// Null if there is none.
  Value get(const std::string& key) const;
  void set(const std::string& key, std::string value);
  /// Throws MisuseError if the value is not a number or the sum does not fit.
  int64_t add(const std::string& key, int64_t delta);
  /// The value after; null if there is none.
  Value compare_and_set(const std::string& key, const std::string& expected, std::string desired);
  bool erase(const std::string& key) { return values_.erase(key) > 0; }

 private:
  std::unordered_map<std::string, Value> values_;
};

/// Throws MisuseError that names the key if the key or one of the values is too large.
void check_sizes(const std::string& key, const std::string& value = {},
                 const std::string& other_value = {});

}  // namespace trireme::net
