#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trireme/net/handshake.h"
#include "trireme/net/store.h"

namespace trireme::net {

struct StoreRequest;
struct StoreReply;

/// A client of a StoreServer. Each call takes an idle connection, or makes another one if all are
/// busy (a thread that waits keeps its connection), so that no call waits for another.
class TcpStore : public Store {
 public:
  /// Waits for the server to come up, connects and proves itself.
  TcpStore(const Address& server, const Secret& secret, const Identity& me, Deadline deadline);
  ~TcpStore() override;

  void set(const std::string& key, const std::string& value, Deadline deadline) override;
  std::optional<std::string> get(const std::string& key, Deadline deadline) override;
  std::vector<std::string> wait_all(const std::vector<std::string>& keys,
                                    Deadline deadline) override;
  int64_t add(const std::string& key, int64_t delta, Deadline deadline) override;
  std::string compare_and_set(const std::string& key, const std::string& expected,
                              const std::string& desired, Deadline deadline) override;
  bool erase(const std::string& key, Deadline deadline) override;

  /// This end of the connection: the address by which the server's host reaches this one.
  Address local_address() const { return local_address_; }

 private:
  class Connection;

  std::unique_ptr<Connection> take_connection(Deadline deadline);
  StoreReply call(StoreRequest request, Deadline deadline);

  Address server_;
  StoreOptions options_;
  Address local_address_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_;
};

std::unique_ptr<TcpStore> connect_store(const Address& server, const Secret& secret,
                                        const Identity& me, Deadline deadline);

}  // namespace trireme::net
