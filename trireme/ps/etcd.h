#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/core/json.h"
#include "trireme/net/socket.h"
#include "trireme/ps/http.h"

namespace trireme::ps {

/// No etcd has answered. What was asked may have happened or not: ask again.
class EtcdAway : public CommError {
  using CommError::CommError;
};

struct EtcdEntry {
  std::string key = {}, value = {};
  int64_t lease = 0;    ///< the entry goes when that one runs out; 0: none
  int64_t created = 0;  ///< the revision of the whole store in which the key began to exist
};

/// Keys from `begin` up to, but without, `end`.
struct EtcdKeys {
  std::string begin, end;
};

/// What happens as a whole or not at all: only if `key` exists since revision `created` (0: only
/// if there is no such key). At most 128 puts and removals, of 1.5 MiB.
struct EtcdChange {
  std::string key;
  int64_t created = 0;
  std::vector<EtcdEntry> puts = {};
  std::vector<EtcdKeys> removals = {};
};

/// A client of etcd 3.4 or newer, through the JSON gateway that it has on its usual port:
///
///   POST /v3/kv/txn {"compare": [{"key": "Zm9v", ...}], ...}      keys and values are base64
///
/// Of several hosts of a cluster it asks the one that answered last, and the next ones if that
/// does not. Every request has a time limit. Throws EtcdAway if none answers, CommError if etcd
/// refuses. One thread at a time.
class Etcd {
 public:
  explicit Etcd(std::vector<net::Address> hosts);

  /// Returns whether it has happened.
  bool commit(const EtcdChange& change);
  /// The first entries, in the order of their keys.
  std::vector<EtcdEntry> read(const EtcdKeys& keys, int64_t most);
  std::optional<EtcdEntry> read(const std::string& key);
  std::optional<EtcdEntry> read_last(const EtcdKeys& keys);

  struct Lease {
    int64_t id = 0;
    std::chrono::seconds time{};  ///< at least what was asked for
  };
  Lease grant(std::chrono::seconds time);
  /// Returns whether the lease lives, and then for its whole time from now on.
  bool keep_alive(int64_t lease);
  void revoke(int64_t lease);

  /// "10.0.0.1:2379, 10.0.0.2:2379"
  const std::string& hosts() const { return names_; }

 private:
  core::Json ask(const std::string& what, const core::Json& request);
  std::vector<EtcdEntry> range(const core::Json& request);

  std::vector<net::Address> hosts_;
  size_t host_ = 0;  ///< the one that is asked first
  std::string names_;
  Http http_;
};

}  // namespace trireme::ps
