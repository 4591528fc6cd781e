// Streams between nodes, on a pair of sockets.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>

#include "trireme/ps/stream.h"

namespace trireme::ps {
namespace {

class StreamPair {
 public:
  StreamPair() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    // With the right to it (as root), all that is sent fits into the socket.
    const int bytes = 64 << 20;
    for (const int end : ends) ::setsockopt(end, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
    const auto buffers = std::make_shared<Buffers>();
    from.emplace(net::Socket(net::Fd(ends[0])), buffers, std::nullopt);
    to.emplace(net::Socket(net::Fd(ends[1])), buffers, std::nullopt);
  }
  /// Whether the socket says that there is something to read.
  bool is_ready() const {
    pollfd ready{to->fd(), POLLIN, 0};
    return ::poll(&ready, 1, 0) > 0;
  }
  std::optional<Stream> from, to;
};

/// Reading ends its turn after so many bytes, wherever in a message that is. What is left must then
/// be said by the socket or by `read`.
TEST(Streams, AMessageThatEndsATurnIsNotLeftBehind) {
  for (const size_t bytes :
       {100UL, 70'000UL, 1UL << 20, 3UL << 20, 4UL << 20, (4UL << 20) + 20, 8UL << 20, 9UL << 20}) {
    StreamPair pair;
    for (int message = 0; message < 2; ++message) pair.from->send(Frame(std::string(bytes, 'x')));
    size_t got = 0;
    const auto take = [&](const Frame& frame) { got += frame.bytes(); };
    auto left = Stream::Left::Nothing;
    for (bool sent = false; !sent || left == Stream::Left::Some || pair.is_ready();) {
      sent = pair.from->flush();
      left = pair.to->read(take);
    }
    EXPECT_EQ(got, 2 * bytes);
  }
}

}  // namespace
}  // namespace trireme::ps
