#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "trireme/net/socket.h"

namespace trireme {

/// Where a rank of a job meets the others, and who it is, as init() reads it from a URL and the
/// environment. A value, so that each way of starting ranks can be tested without starting any.
struct Rendezvous {
  enum class Kind : uint8_t { Alone, Tcp, File } kind = Kind::Alone;
  net::Address address = {};  ///< of the store, for Tcp
  std::string path = {};      ///< of the file, for File
  std::string job = "trireme";
  int rank = 0;
  int size = 1;
};

/// Throws a ConfigError that says what is wrong and what would be right.
Rendezvous find_rendezvous(std::string_view url);

}  // namespace trireme
