#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/net/handshake.h"
#include "trireme/net/socket.h"

namespace trireme::net {

constexpr size_t kMaxKeyBytes = 4096;
constexpr size_t kMaxValueBytes = 1 << 20;
constexpr size_t kMaxListBytes = 16 << 20;

constexpr const char* kTurnedAwayKey = "turned away";

/// Keys and values that all ranks of a job share; how they find each other. Every call is atomic.
/// One store may be used by many threads at once: one that waits does not hold up the others.
/// A missed deadline is a TimeoutError and a store that is gone a CommError. Keys up to
/// kMaxKeyBytes, values up to kMaxValueBytes; more is a MisuseError.
///
/// What a store server could not let in is under kTurnedAwayKey, a sentence a line.
/// connect_store (tcp_store.h) makes one for tcp://, open_file_store one for file://.
class Store {
 public:
  virtual ~Store();

  virtual void set(const std::string& key, const std::string& value, Deadline deadline) = 0;
  /// The value as it is now, or nothing.
  virtual std::optional<std::string> get(const std::string& key, Deadline deadline) = 0;
  /// Waits until all of these exist; their values, in that order. The values together may have
  /// kMaxListBytes. The TimeoutError names the first key.
  virtual std::vector<std::string> wait_all(const std::vector<std::string>& keys,
                                            Deadline deadline) = 0;
  std::string wait(const std::string& key, Deadline deadline) {
    return std::move(wait_all({key}, deadline).front());
  }
  /// Adds to a whole number, kept as its decimal text; an absent key counts as 0. Returns the sum.
  /// Throws MisuseError if the value is not a number or the sum does not fit.
  virtual int64_t add(const std::string& key, int64_t delta, Deadline deadline) = 0;
  /// Sets the key to `desired` if it holds `expected`; "" expects that it is absent. Returns the
  /// value after that: `desired` if it was set, else what is there ("" if nothing).
  virtual std::string compare_and_set(const std::string& key, const std::string& expected,
                                      const std::string& desired, Deadline deadline) = 0;
  /// Whether there was something to erase.
  virtual bool erase(const std::string& key, Deadline deadline) = 0;

  /// The job needs it no longer: leaves nothing behind. A file goes if it is still the one that was
  /// opened; a server goes with whoever runs it.
  virtual void remove() noexcept {}
};

struct StoreOptions {
  Secret secret;
  Identity identity;
};

/// A store in one file of mode 0600, which ranks of one host, or of several over NFS, open at the
/// same path. Made if it is not there. Throws
/// ConfigError if the file is of another job or world size, belongs to somebody else, or is not a
/// store.
std::unique_ptr<Store> open_file_store(const std::string& path, const Identity& me,
                                       Deadline deadline);

}  // namespace trireme::net
