// An etcd of our own, for tests that kill it.
#pragma once

#include <fmt/format.h>
#include <signal.h>

#include <memory>
#include <optional>
#include <regex>
#include <stdexcept>
#include <string>
#include <thread>

#include "support/command.h"
#include "support/scratch.h"
#include "trireme/net/socket.h"
#include "trireme/ps/etcd.h"

namespace trireme::test {

/// One member on this host, with ports and a folder of its own.
class EtcdServer {
 public:
  /// Whether this build can speak to etcd, and this machine has one that it can speak to.
  static bool available() {
    static const bool is = [] {
      const auto version = run_command({"etcd", "--version"});
      std::smatch number;
      return ps::Http::available() && version.code == 0 &&
             std::regex_search(version.out, number, std::regex("Version: (\\d+)\\.(\\d+)")) &&
             std::pair(std::stoi(number[1]), std::stoi(number[2])) >= std::pair(3, 4);
    }();
    return is;
  }

  EtcdServer() { start(); }

  const net::Address& address() const { return address_; }
  std::string place() const { return "etcd://" + address_.to_string(); }
  ps::Etcd client() const { return ps::Etcd({address_}); }

  void kill() {
    process_->signal(SIGKILL);
    process_->finish();
  }

  /// Returns when it answers. `setpriv`: it ends with this process, however that ends.
  void start() {
    const std::string url = "http://" + address_.to_string(), peers = "http://" + peer_.to_string();
    process_ = std::make_unique<Command>(
        std::vector<std::string>{"setpriv", "--pdeathsig", "KILL", "etcd", "--name", "test",
                                 "--data-dir", folder_ / "data", "--logger", "zap", "--log-level",
                                 "error", "--listen-client-urls", url, "--advertise-client-urls",
                                 url, "--listen-peer-urls", peers, "--initial-advertise-peer-urls",
                                 peers, "--initial-cluster", "test=" + peers,
                                 // It elects itself after that time.
                                 "--heartbeat-interval", "10", "--election-timeout", "100"},
        CommandOptions{.deadline = std::chrono::seconds(600)});
    const bool answers = eventually([&] { return is_well(); }, std::chrono::seconds(20));
    if (answers) return;
    process_->signal(SIGKILL);
    throw std::runtime_error("etcd does not start: " + process_->finish().err);
  }

 private:
  /// The kernel gives out a port that was used last after all others.
  static net::Address free_address() { return net::Listener({"127.0.0.1", 0}).address(); }

  bool is_well() const {
    try {
      (void)client().read("any");
      return true;
    } catch (const CommError&) {
      return false;
    }
  }

  const Scratch folder_;
  const net::Address address_ = free_address(), peer_ = free_address();
  std::unique_ptr<Command> process_;
};

}  // namespace trireme::test
