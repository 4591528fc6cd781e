#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace trireme::ps {

/// Posts JSON over HTTP, by libcurl, and keeps its connections. One thread at a time.
class Http {
 public:
  /// Whether this build has libcurl.
  static bool available();

  /// Throws ConfigError, with the remedy, where there is no libcurl.
  Http();
  ~Http();

  struct Answer {
    int64_t status = 0;
    std::string body = {};
  };
  /// Throws CommError, with libcurl's reason, if no answer has come in that time.
  Answer post(const std::string& url, const std::string& json, std::chrono::milliseconds time);

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace trireme::ps
