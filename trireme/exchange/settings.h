#pragma once

#include <optional>
#include <string>

#include "trireme/core/json.h"

namespace trireme::exchange {

/// The values of a config.json. A value of another type than asked for is a ConfigError that names
/// file and value.
class Settings {
 public:
  Settings(core::Json json, std::string path);

  const core::Json& json() const { return json_; }
  const std::string& path() const { return path_; }
  /// The value; `otherwise` where it is missing or null; a ConfigError where that is not given.
  int64_t whole(const char* key, std::optional<int64_t> otherwise = {}) const;
  double number(const char* key, std::optional<double> otherwise = {}) const;
  bool truth(const char* key, bool otherwise) const;
  std::string text(const char* key, std::optional<std::string> otherwise = {}) const;
  /// An object in it; nothing where it is missing or null.
  std::optional<Settings> inside(const char* key) const;

  /// Throws ConfigError "PATH: 'key' is VALUE, ...; SENTENCE" .
  [[noreturn]] void refuse(const char* key, const std::string& sentence) const;
  /// Refuses unless the value, or `otherwise`, is the one that this program computes with.
  void need(const char* key, const core::Json& wanted) const;

 private:
  const core::Json* find(const char* key) const;
  const core::Json& must_find(const char* key) const;

  core::Json json_;
  std::string path_;
};

}  // namespace trireme::exchange
