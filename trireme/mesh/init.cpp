#include "trireme/mesh/init.h"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <new>
#include <system_error>
#include <thread>

#include "trireme/comm/bootstrap.h"
#include "trireme/comm/local/local.h"
#include "trireme/comm/shm/shm.h"
#include "trireme/comm/tcp/tcp.h"
#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/core/units.h"
#include "trireme/mesh/rendezvous.h"
#include "trireme/net/secret.h"
#include "trireme/net/store.h"
#include "trireme/net/store_server.h"
#include "trireme/net/tcp_store.h"

namespace trireme {

namespace {

constexpr double kPatienceSeconds = 300;

enum class Kind : uint8_t { Auto, Shm, Tcp };

Kind wanted_backend(int size) {
  const std::string name = core::env("TRIREME_BACKEND").value_or("auto");
  if (name == "auto") return Kind::Auto;
  if (name == "shm") return Kind::Shm;
  if (name == "tcp") return Kind::Tcp;
  if (name == "local" && size == 1) return Kind::Auto;
  if (name == "local")
    throw ConfigError(
        fmt::format("TRIREME_BACKEND=local: the {} ranks of this job are processes; ranks that are "
                    "threads of one are made by comm::make_local. Use shm, tcp or auto",
                    size));
  throw ConfigError(fmt::format("TRIREME_BACKEND='{}' is none of auto, shm, tcp and local", name));
}

/// The store of this job, and on rank 0 the server behind it.
struct Meeting {
  std::unique_ptr<net::StoreServer> server;
  std::unique_ptr<net::Store> store;
  std::string address = "127.0.0.1";  ///< of this host, as the others see it
};

Meeting meet(const Rendezvous& where, const net::Secret& secret, net::Deadline deadline) {
  Meeting meeting;
  const net::Identity me{where.job, "rank", where.rank, where.size};
  if (where.kind == Rendezvous::Kind::File) {
    meeting.store = net::open_file_store(where.path, me, deadline);
    return meeting;
  }
  if (where.rank == 0)
    meeting.server =
        std::make_unique<net::StoreServer>(where.address, secret, where.job, where.size);
  auto store = net::connect_store(where.address, secret, me, deadline);
  meeting.address = store->local_address().host;
  meeting.store = std::move(store);
  return meeting;
}

/// Auto is shm if all ranks are on one host. Every rank says which host it is on and what it wants,
/// so that all of them choose the same.
Kind choose_backend(const comm::Bootstrap& bootstrap, Kind mine) {
  const auto all = comm::exchange(bootstrap, "host",
                                  fmt::format("{}|{}", static_cast<int>(mine), comm::host_key()));
  bool one_host = true;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank][0] != all[0][0])
      throw CommError(fmt::format(
          "rank {} and rank 0 ask for different backends; set TRIREME_BACKEND alike everywhere",
          rank));
    one_host &= all[rank] == all[0];
  }
  if (mine != Kind::Auto) return mine;
  return one_host ? Kind::Shm : Kind::Tcp;
}

double positive_seconds(const char* variable, double otherwise) {
  const double seconds = core::env_double(variable).value_or(otherwise);
  if (seconds <= 0)
    throw ConfigError(fmt::format("{}={} must be more than 0 seconds", variable, seconds));
  return seconds;
}

/// A meeting that fails on rank 0 ends the store for all: the others get a moment to read why.
struct LetOthersRead {
  const Meeting& meeting;
  ~LetOthersRead() {
    if (std::uncaught_exceptions() > 0 && meeting.server)
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
};

/// Finds the other ranks, and makes the world with them.
comm::Communicator join(const Rendezvous& where, Kind wanted, const net::Secret& secret,
                        net::Deadline deadline) {
  Meeting meeting = meet(where, secret, deadline);
  const LetOthersRead linger{meeting};
  comm::Bootstrap bootstrap{
      .store = *meeting.store,
      .secret = secret,
      .job = where.job,
      .rank = where.rank,
      .size = where.size,
      .address = meeting.address,
      .host_key = {},
      .place = where.kind == Rendezvous::Kind::File ? where.path : where.address.to_string(),
      .deadline = deadline};
  const Kind kind = choose_backend(bootstrap, wanted);
  comm::Communicator world(
      "world", kind == Kind::Shm ? comm::make_shm(bootstrap) : comm::make_tcp(bootstrap));
  core::Log(where.rank, "world").info(fmt::format("{} ranks over {}", where.size, world.backend()));
  // Nobody needs the store any more once all ranks are here: only then may rank 0 take it down.
  world.barrier();
  if (where.kind == Rendezvous::Kind::File && where.rank == 0) ::unlink(where.path.c_str());
  return world;
}

}  // namespace

comm::Communicator init(const std::string& url) {
  const Rendezvous where =
      find_rendezvous(url.empty() ? core::env("TRIREME_INIT").value_or("") : url);
  const Kind wanted = wanted_backend(where.size);
  positive_seconds("TRIREME_HEARTBEAT_S", 1);
  const auto patience = core::from_seconds(positive_seconds("TRIREME_TIMEOUT_S", kPatienceSeconds));
  if (where.kind == Rendezvous::Kind::Alone)
    return {"world", comm::make_local(comm::make_local_hub(1), 0)};
  const auto deadline = net::Clock::now() + patience;
  const net::Secret secret = net::secret_of_job(where.job);
  try {
    return join(where, wanted, secret, deadline);
  } catch (const TimeoutError&) {
    // Nobody will meet here any more, once the others have read why.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    if (where.kind == Rendezvous::Kind::File) ::unlink(where.path.c_str());
    throw;
  } catch (const std::system_error& error) {
    throw CommError(
        fmt::format("rank {} of {} cannot join: {}; raise the limits on threads (ulimit -u) and "
                    "memory (ulimit -v)",
                    where.rank, where.size, error.what()));
  } catch (const std::bad_alloc&) {
    throw CommError(
        fmt::format("rank {} of {} cannot join: no memory; raise the limit (ulimit -v, the cgroup)",
                    where.rank, where.size));
  }
}

}  // namespace trireme
