#include "trireme/launch/port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "trireme/core/error.h"

namespace trireme::launch {

ReservedPort::ReservedPort() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  if (socket_.get() < 0 ||
      setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(socket_.get(), generic, size) != 0 || getsockname(socket_.get(), generic, &size) != 0)
    throw CommError(fmt::format("no free port on 127.0.0.1 for the ranks to meet: {}",
                                core::errno_text(errno)));
  number_ = ntohs(address.sin_port);
}

}  // namespace trireme::launch
