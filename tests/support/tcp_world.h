#pragma once

#include <memory>
#include <string>

#include "trireme/comm/bootstrap.h"
#include "trireme/comm/process_world.h"
#include "trireme/comm/tcp/tcp.h"
#include "trireme/net/store.h"

namespace trireme::test {

/// A place in a world over sockets. Its ranks are of this machine, may be threads of one process,
/// and meet through a file.
struct TcpPlace {
  std::string file;
  int rank = 0;
  int size = 1;
  comm::WorldOptions options = {};
};

/// Collective.
inline std::shared_ptr<comm::Backend> join_tcp(const TcpPlace& place, net::Deadline deadline) {
  const std::string job = "test";
  const auto store =
      net::open_file_store(place.file, {job, "rank", place.rank, place.size}, deadline);
  const comm::Bootstrap bootstrap{.store = *store,
                                  .secret = net::secret_of_job(job),
                                  .job = job,
                                  .rank = place.rank,
                                  .size = place.size,
                                  .address = "127.0.0.1",
                                  .host_key = {},
                                  .place = place.file,
                                  .deadline = deadline,
                                  .options = place.options};
  return comm::make_tcp(comm::ProcessWorld(bootstrap, comm::TransportKind::Tcp));
}

}  // namespace trireme::test
