#include <algorithm>
#include <array>

#include "trireme/core/error.h"
#include "trireme/net/handshake.h"
#include "trireme/net/retry.h"

namespace trireme::net {

namespace {

/// A server drops clients that take this long. A hang-up after it does not mean that it refuses us.
constexpr auto kServersPatience = std::chrono::seconds(4);
constexpr auto kPromptHangUps =
    std::chrono::seconds(2);  // a server that hangs up at once for this long means it

/// The other end closed the connection before the handshake was over.
class HungUpError : public CommError {
  using CommError::CommError;
};

Socket connect_any(const Address& address, Deadline deadline) {
  // A process publishes the name after it listens. If nobody listens, the process has ended.
  if (address.host.starts_with('@'))
    return connect_unix_abstract(address.host.substr(1), deadline, IfAbsent::Fail);
  return connect(address, deadline);
}

}  // namespace

Identity prove(Socket& socket, Handshake handshake, Deadline deadline) {
  const std::string peer = socket.peer().to_string();
  std::array<char, 1024> bytes{};
  try {
    for (;;) {
      const std::string output = handshake.take_output();
      if (!output.empty()) socket.send_all(output.data(), output.size(), deadline);
      if (handshake.wanted() == 0) break;
      const size_t received =
          socket.recv_some(bytes.data(), std::min(bytes.size(), handshake.wanted()), deadline);
      handshake.feed({bytes.data(), received});
    }
  } catch (const TimeoutError&) {
    throw TimeoutError(fmt::format(
        "handshake with {}: it did not prove itself before the deadline; it hangs, or it is not a "
        "trireme process",
        peer));
  } catch (const CommError& error) {
    throw HungUpError(fmt::format(
        "handshake with {}: it hung up ({}); it has ended, or it is not a trireme process", peer,
        error.what()));
  }
  if (handshake.state() == Handshake::State::Failed)
    throw CommError(fmt::format("handshake: {} {}", peer, handshake.error()));
  return handshake.peer();
}

ProvenConnection connect_and_prove(const Address& address, const std::string& role,
                                   const Secret& secret, const Identity& me, Deadline deadline) {
  const auto first = Clock::now();
  for (Backoff backoff(std::chrono::milliseconds(5), std::chrono::milliseconds(200));;) {
    Socket socket = connect_any(address, deadline);
    const auto began = Clock::now();
    try {
      const Identity peer = prove(socket, Handshake(Handshake::Side::Client, secret, me), deadline);
      if (peer.role != role)
        throw CommError(
            fmt::format("{}: a '{}' answers where the '{}' of rank {} should; check "
                        "the address",
                        address.to_string(), peer.role, role, peer.rank));
      return {std::move(socket), peer};
    } catch (const HungUpError&) {
      const bool prompt = Clock::now() - began < kServersPatience;
      if (prompt && Clock::now() - first > kPromptHangUps) throw;
      if (backoff.sleep(deadline) == Readiness::DeadlinePassed) throw;
    }
  }
}

}  // namespace trireme::net
