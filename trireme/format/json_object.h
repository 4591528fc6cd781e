#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/json.h"

namespace trireme::format {

/// JSON from a file that may be damaged or hostile: nested at most `most_depth` deep (printing a
/// document recurses). Throws CheckpointError that begins with `path`.
core::Json parse_untrusted(std::string_view text, const std::string& path, int most_depth);

/// One object of such a document. Every getter throws CheckpointError: "PATH: WHERE: 'shape' ...".
class JsonObject {
 public:
  JsonObject(const core::Json& json, const std::string& path, std::string where);

  const core::Json& at(const char* key) const;
  std::string text(const char* key) const;
  int64_t number(const char* key) const;  ///< an integer, at least 0
  std::vector<int64_t> numbers(const char* key) const;
  [[noreturn]] void fail(std::string_view sentence) const;

 private:
  int64_t to_number(const core::Json& value, const char* key) const;

  const core::Json& json_;
  const std::string& path_;
  std::string where_;
};

}  // namespace trireme::format
