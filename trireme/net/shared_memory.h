#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "trireme/net/socket.h"

namespace trireme::net {

/// Memory that processes of one host share: an anonymous file (memfd) that is passed over a unix
/// socket (`send_fd`). It has no name, so it leaves nothing behind, and its size can never change:
/// touching a page beyond the end of a file is a SIGBUS. Errors are CommErrors with a remedy.
Fd make_shared_memory(std::size_t bytes);

/// Throws unless the memory that another process passed has this size and keeps it.
void check_shared_memory(int fd, std::size_t bytes);

enum class Access : uint8_t { Read, ReadWrite };

/// The memory in this process; unmapped when the last copy is destroyed.
std::shared_ptr<std::byte> map_shared_memory(int fd, std::size_t bytes,
                                             Access access = Access::ReadWrite);

/// The same text for all processes that can share memory and unix sockets with this one: boot id,
/// and the namespaces of network and processes.
std::string host_key();

}  // namespace trireme::net
