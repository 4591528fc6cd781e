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

/// Keys and values that all ranks of a job share, to find each other. Every call is atomic. Many
/// threads may use one store at once: one that waits does not block the others. A missed deadline
/// is a TimeoutError and a lost store a CommError. Keys up to kMaxKeyBytes, values up to
/// kMaxValueBytes; more is a MisuseError.
///
/// The value of kTurnedAwayKey lists whom a store server has refused, one sentence per line.
/// connect_store (tcp_store.h) makes one for tcp://, open_file_store one for file://.
class Store {
 public:
  virtual ~Store();

  virtual void set(const std::string& key, const std::string& value, Deadline deadline) = 0;
  /// The current value, or nothing.
  virtual std::optional<std::string> get(const std::string& key, Deadline deadline) = 0;
  /// Waits until all keys exist and returns their values in that order. All values together may
  /// have kMaxListBytes. A TimeoutError names the first key.
  virtual std::vector<std::string> wait_all(const std::vector<std::string>& keys,
                                            Deadline deadline) = 0;
  std::string wait(const std::string& key, Deadline deadline) {
    return std::move(wait_all({key}, deadline).front());
  }
  /// Adds to a whole number, stored as decimal text; an absent key counts as 0. Returns the sum.
  /// Throws MisuseError if the value is not a number or the sum does not fit.
  virtual int64_t add(const std::string& key, int64_t delta, Deadline deadline) = 0;
  /// Sets the key to `desired` if its value is `expected`; "" expects that it is absent. Returns
  /// the value afterwards: `desired` if it was set, else the current one ("" if there is none).
  virtual std::string compare_and_set(const std::string& key, const std::string& expected,
                                      const std::string& desired, Deadline deadline) = 0;
  /// Returns whether the key existed.
  virtual bool erase(const std::string& key, Deadline deadline) = 0;

  /// Removes what the store leaves behind when the job needs it no longer: its file, if it is still
  /// the one that was opened. A server ends with its owner.
  virtual void remove() noexcept {}
};

struct StoreOptions {
  Secret secret;
  Identity identity;
};

/// A store in one file of mode 0600, which ranks of one host, or of several over NFS, open at the
/// same path. Creates the file if needed. Throws ConfigError if the file belongs to another job,
/// world size or user, or is not a store.
std::unique_ptr<Store> open_file_store(const std::string& path, const Identity& me,
                                       Deadline deadline);

}  // namespace trireme::net
