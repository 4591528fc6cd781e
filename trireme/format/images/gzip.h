#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace trireme::format {

/// Reads what a .gz file holds, from its beginning. Throws Error with one sentence. A build without
/// zlib has one that throws at once.
class GzipReader {
 public:
  explicit GzipReader(const std::string& path);
  ~GzipReader();
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  /// Appends the next bytes to `to`, at most `count`; fewer, if there are no more.
  void read(int64_t count, std::string& to);

 private:
  struct Handle;
  std::string path_;
  std::unique_ptr<Handle> handle_;
};

}  // namespace trireme::format
