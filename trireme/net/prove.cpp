#include <algorithm>
#include <array>

#include "trireme/core/error.h"
#include "trireme/net/handshake.h"

namespace trireme::net {

namespace {

Identity drive(Socket& socket, Handshake handshake, Deadline deadline) {
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
        "handshake with {}: it did not prove itself before the deadline; it hangs, or it is not of "
        "trireme",
        peer));
  } catch (const CommError& error) {
    throw CommError(
        fmt::format("handshake with {}: it hung up ({}); it has ended, or it is not of trireme",
                    peer, error.what()));
  }
  if (handshake.state() == Handshake::State::Failed)
    throw CommError(fmt::format("handshake: {} {}", peer, handshake.error()));
  return handshake.peer();
}

}  // namespace

Identity prove_as_client(Socket& socket, const Secret& secret, const Identity& me,
                         Deadline deadline) {
  return drive(socket, Handshake(Handshake::Side::Client, secret, me), deadline);
}

Identity prove_as_server(Socket& socket, const Secret& secret, const Identity& me,
                         Deadline deadline, Admit admit) {
  return drive(socket, Handshake(Handshake::Side::Server, secret, me, std::move(admit)), deadline);
}

}  // namespace trireme::net
