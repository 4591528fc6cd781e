#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trireme/net/handshake.h"
#include "trireme/net/socket.h"

namespace trireme::net {

constexpr size_t kMaxKeyBytes = 4096;
constexpr size_t kMaxValueBytes = 1 << 20;

/// Keys and values that all ranks of a job share; how they find each other. Every call is atomic.
/// One store may be used by many threads at once: one that waits does not hold up the others.
/// A missed deadline is a TimeoutError and a store that is gone a CommError. Keys up to
/// kMaxKeyBytes, values up to kMaxValueBytes; more is a MisuseError.
///
/// connect_store (tcp_store.h) makes one for tcp://, open_file_store one for file://.
class Store {
 public:
  virtual ~Store();

  virtual void set(const std::string& key, const std::string& value, Deadline deadline) = 0;
  /// The value as it is now, or nothing.
  virtual std::optional<std::string> get(const std::string& key, Deadline deadline) = 0;
  /// Waits until the key exists. The TimeoutError names the key.
  virtual std::string wait(const std::string& key, Deadline deadline) = 0;
  /// Adds to a whole number, kept as its decimal text; an absent key counts as 0. Returns the sum.
  /// Throws MisuseError if the value is not a number or the sum does not fit.
  virtual int64_t add(const std::string& key, int64_t delta, Deadline deadline) = 0;
  /// Sets the key to `desired` if it holds `expected`; "" expects that it is absent. Returns the
  /// value after that: `desired` if it was set, else what is there ("" if nothing).
  virtual std::string compare_and_set(const std::string& key, const std::string& expected,
                                      const std::string& desired, Deadline deadline) = 0;
  /// Whether there was something to erase.
  virtual bool erase(const std::string& key, Deadline deadline) = 0;
};

struct StoreOptions {
  Secret secret;
  Identity identity;
};

/// A store in one file of mode 0600, which ranks of one host, or of several over NFS, open at the
/// same path. Made if it is not there; removing it after the job is up to the caller. Throws
/// ConfigError if the file is of another job or world size, belongs to somebody else, or is not a
/// store.
std::unique_ptr<Store> open_file_store(const std::string& path, const Identity& me,
                                       Deadline deadline);

}  // namespace trireme::net
