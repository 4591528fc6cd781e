#include "trireme/mesh/init.h"

#include <stdlib.h>
#include <unistd.h>

#include <ATen/Context.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <system_error>
#include <thread>

#include "trireme/comm/bootstrap.h"
#include "trireme/comm/kernels.h"
#include "trireme/comm/local/local.h"
#include "trireme/comm/nccl/nccl.h"
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

/// How long the other ranks have to read what went wrong, before the store ends.
constexpr auto kReading = std::chrono::milliseconds(300);

using comm::TransportKind;
using std::chrono::nanoseconds;

TransportKind transport_named(const std::string& name, int size) {
  if (name == "auto") return TransportKind::Auto;
  if (name == "shm") return TransportKind::Shm;
  if (name == "tcp") return TransportKind::Tcp;
  if (name == "nccl") return TransportKind::Nccl;
  if (name == "local" && size == 1) return TransportKind::Auto;
  if (name == "local")
    throw ConfigError(
        fmt::format("TRIREME_BACKEND=local: the {} ranks of this job are processes; ranks that are "
                    "threads of one are made by comm::make_local. Use shm, tcp, nccl or auto",
                    size));
  throw ConfigError(
      fmt::format("TRIREME_BACKEND='{}' is none of auto, shm, tcp, nccl and local", name));
}

nanoseconds seconds_of(const char* variable, const std::optional<nanoseconds>& said,
                       nanoseconds otherwise) {
  nanoseconds time = said.value_or(otherwise);
  if (const auto seconds = core::env_double(variable); seconds && !said)
    time = core::from_seconds(*seconds);
  if (time <= nanoseconds(0))
    throw ConfigError(fmt::format("{}={} must be more than 0 seconds", variable,
                                  std::chrono::duration<double>(time).count()));
  return time;
}

/// Reads the environment; everything below gets its options as values.
comm::WorldOptions world_options(const InitOptions& options) {
  comm::WorldOptions found;
  found.timeout = seconds_of("TRIREME_TIMEOUT_S", options.timeout, found.timeout);
  found.heartbeat = seconds_of("TRIREME_HEARTBEAT_S", options.heartbeat, found.heartbeat);
  found.rate_mbit = options.rate_mbit.value_or(core::env_double("TRIREME_RATE_MBIT").value_or(0));
  if (!(found.rate_mbit >= 0))
    throw ConfigError(fmt::format("TRIREME_RATE_MBIT={} must not be negative", found.rate_mbit));
  found.record_dir = options.record_dir ? options.record_dir : core::env("TRIREME_RECORD_DIR");
  if (found.record_dir && found.record_dir->empty()) found.record_dir.reset();
  return found;
}

/// Which transport carries the data is known only when the ranks have met.
void warn_without_tcp(const comm::Communicator& world, double rate_mbit) {
  if (rate_mbit <= 0 || world.backend().find("tcp") != std::string::npos) return;
  core::Log(world.rank(), "world")
      .warning(fmt::format("the limit of {} Mbit/s (comm.rate_mbit, TRIREME_RATE_MBIT) has no "
                           "effect: the ranks communicate over {}; use comm.backend=tcp",
                           rate_mbit, world.backend()));
}

/// The launcher's name for this host; empty if it has none.
std::string launchers_host() {
  const auto group = core::env("GROUP_RANK");
  return group ? "group " + *group : "";
}

/// The store of this job, and on rank 0 the server behind it.
struct Meeting {
  std::unique_ptr<net::StoreServer> server;
  std::unique_ptr<net::Store> store;
  std::string address = "127.0.0.1";  ///< of this host, as the others reach it
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

bool may_use_nccl(TransportKind wanted) {
  return wanted == TransportKind::Auto || wanted == TransportKind::Nccl;
}

/// This rank's GPU, for the others: by default a rank takes the one of its number on its host.
std::string own_gpu(const Rendezvous& where, TransportKind wanted) {
  if (!may_use_nccl(wanted)) return "";
  return comm::nccl::gpu_text(static_cast<int>(core::env_int("LOCAL_RANK").value_or(where.rank)));
}

/// Whether the ranks use NCCL, and how. Throws if they must and cannot.
std::optional<comm::nccl::Sharing> nccl_for(const std::vector<comm::RankEntry>& entries,
                                            TransportKind wanted) {
  if (!may_use_nccl(wanted)) return std::nullopt;
  const comm::nccl::Placement placement = comm::nccl::place(entries);
  if (wanted == TransportKind::Nccl) {
    if (!placement.possible) throw ConfigError("TRIREME_BACKEND=nccl: " + placement.problem);
    return placement.sharing;
  }
  // Several ranks on one GPU are for tests; through host memory they need nothing special.
  if (!placement.possible || placement.sharing == comm::nccl::Sharing::SharedGpu)
    return std::nullopt;
  return placement.sharing;
}

/// Makes the world of ranks that have met.
std::shared_ptr<comm::Backend> make_backend(comm::ProcessWorld process) {
  const auto nccl = nccl_for(process.entries, process.wanted);
  auto host = process.host_transport() == TransportKind::Shm ? comm::make_shm(std::move(process))
                                                             : comm::make_tcp(std::move(process));
  return nccl ? comm::make_nccl(std::move(host), *nccl) : host;
}

/// If joining fails on rank 0, the store ends for all: waits so that the others can read why.
struct LetOthersRead {
  const Meeting& meeting;
  ~LetOthersRead() {
    if (std::uncaught_exceptions() > 0 && meeting.server) std::this_thread::sleep_for(kReading);
  }
};

/// Finds the other ranks and makes the world with them.
comm::Communicator join(const Rendezvous& where, TransportKind wanted, comm::WorldOptions options) {
  const std::chrono::nanoseconds longest = std::chrono::hours(24 * 365);  // more could overflow
  const auto deadline = net::Clock::now() + std::min(options.timeout, longest);
  const net::Secret secret = net::secret_of_job(where.job);
  const Meeting meeting = meet(where, secret, deadline);
  const LetOthersRead linger{meeting};
  const double rate_mbit = options.rate_mbit;
  const bool is_file = where.kind == Rendezvous::Kind::File;
  const comm::Bootstrap bootstrap{.store = *meeting.store,
                                  .secret = secret,
                                  .job = where.job,
                                  .rank = where.rank,
                                  .size = where.size,
                                  .address = meeting.address,
                                  .host_key = launchers_host(),
                                  .place = is_file ? where.path : where.address.to_string(),
                                  .gpu = own_gpu(where, wanted),
                                  .deadline = deadline,
                                  .options = std::move(options)};
  try {
    comm::Communicator world("world", make_backend(comm::ProcessWorld(bootstrap, wanted)));
    core::Log(where.rank, "world")
        .info(fmt::format("{} ranks over {}", where.size, world.backend()));
    if (where.rank == 0) warn_without_tcp(world, rate_mbit);
    // Rank 0 may remove the store only after all ranks have joined: until then some need it.
    world.barrier();
    if (where.rank == 0) meeting.store->remove();
    return world;
  } catch (const TimeoutError&) {
    // The store is of no further use once the others have read why.
    std::this_thread::sleep_for(kReading);
    meeting.store->remove();
    throw;
  }
}

}  // namespace

comm::Communicator init(const InitOptions& options) {
  comm::kernels();  // picks the kernels now, so that a wrong TRIREME_CPU fails here
  const Rendezvous where =
      find_rendezvous(options.url.empty() ? core::env("TRIREME_INIT").value_or("") : options.url);
  const TransportKind wanted = transport_named(
      options.backend.value_or(core::env("TRIREME_BACKEND").value_or("auto")), where.size);
  const comm::WorldOptions world = world_options(options);
  // Before CUDA starts: streams that share a hardware queue wait for each other, and two ranks
  // whose kernels are behind each other's would wait for ever.
  if (may_use_nccl(wanted)) ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  if (where.kind == Rendezvous::Kind::Alone) {
    auto alone = comm::make_local(comm::make_local_hub(1), 0, world);
    // So that tensors on a GPU stay there.
    return {"world", at::hasCUDA() && may_use_nccl(wanted)
                         ? comm::make_nccl(std::move(alone), comm::nccl::Sharing::GpuOfItsOwn)
                         : std::move(alone)};
  }
  try {
    return join(where, wanted, world);
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

comm::Communicator init(const std::string& url) {
  return init(InitOptions{.url = url});
}

}  // namespace trireme
