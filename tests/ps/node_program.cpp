// One node of a small job, for tests that kill it:
//
//   ps_node ROLE INDEX PLACE SERVERS WORKERS COPIES BATCHES [counts]
//
// Nodes find the manager through PLACE, a folder or etcd://... Under `trireme run --servers S
// --workers W` the launcher says all but the last two:
//
//   ps_node COPIES BATCHES
//
// A worker trains the table of ps_job.h, and prints the weights that it reads when all work is
// done.
#include <fmt/format.h>

#include <cstdlib>

#include "tests/ps/ps_job.h"
#include "trireme/ps/client.h"
#include "trireme/ps/manager.h"
#include "trireme/ps/role.h"
#include "trireme/ps/server_process.h"
#include "trireme/ps/values.h"

namespace {

using namespace trireme;
using namespace trireme::test;

constexpr std::chrono::milliseconds kStep{5};

void work(ps::Client& client, const ps::JobConfig& job) {
  ps::Clock last = 0;
  uint64_t view = 0;
  bool has_stepped = false;
  for (;;) {
    try {
      const auto work = client.next();
      if (!work) break;
      for (std::size_t step = 0; step < work->batches.size(); ++step) {
        ps::Client::Operation op{.clock = work->clock + step, .view_version = work->view_version};
        op.pull = true;
        const auto weights = ps::values_of<double>(client.wait(client.start(op)).values());
        op.pull = false;
        op.push = true;
        op.batch = work->batches[step];
        op.weight = weight_of(op.batch);
        auto gradient = gradient_of(op.batch, weights);
        for (double& one : gradient) one *= op.weight;
        op.values = ps::bytes_of_values<double>(gradient);
        (void)client.wait(client.start(op));
        last = op.clock + 1;
        view = work->view_version;
        if (!std::exchange(has_stepped, true)) {  // a line a step would fill the pipe to the test
          fmt::print("step {}\n", op.batch);
          std::fflush(stdout);
        }
        std::this_thread::sleep_for(kStep);  // as if it computed
      }
      client.done(*work);
    } catch (const ps::LifeLost&) {
      fmt::print("a life was lost\n");
    }
  }
  // A job that ends early has fewer clocks than its data. One that came back too late for any work
  // has no clock of its own.
  const ps::Clock end = has_stepped ? last : job.batches() / job.workers;
  const auto read = client.wait(client.start({.clock = end, .view_version = view, .pull = true}));
  for (const double one : ps::values_of<double>(read.values())) fmt::print("weight {:.17g}\n", one);
  fmt::print("lives lost: {}\n", client.lives_lost());
}

/// Runs until the node fails.
template <class Running>
[[noreturn]] void serve(const Running& running) {
  while (running.failure() == nullptr) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::rethrow_exception(running.failure());
}

/// As the launcher started it.
int run_role(const ps::JobRole& role, uint32_t copies, uint64_t batches) {
  const ps::JobConfig job = ps_job(
      {.servers = role.servers, .workers = role.workers, .copies = copies, .batches = batches});
  try {
    if (role.node.role != ps::Role::Worker) {
      ps::serve(job, role);
      return 0;
    }
    ps::Client client(ps::node_options(role, job), job, role.node.index);
    work(client, job);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", ps::name_of(role.node), error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto role = ps::role_of_environment(); role && argc == 3)
    return run_role(*role, static_cast<uint32_t>(std::atoi(argv[1])),
                    static_cast<uint64_t>(std::atoll(argv[2])));
  if (argc != 8 && argc != 9) return 2;
  const std::string role = argv[1], place = argv[3];
  const auto number = [&](int i) { return static_cast<uint32_t>(std::atoi(argv[i])); };
  const ps::JobConfig job = ps_job({.servers = number(4),
                                    .workers = number(5),
                                    .copies = number(6),
                                    .batches = number(7),
                                    .counts = argc == 9});
  ps::NodeOptions options{
      .connections = {.job = job.name,
                      .secret = net::Secret::from_text("a secret of tests only"),
                      .lanes = job.lanes,
                      .me = {}},
      .place = ps::make_manager_place(place, job.name),
      .note = [&](const std::string& line) {
        fmt::print(stderr, "{} {}: {}\n", role, number(2), line);
      }};
  if (role != "worker") options.connections.listen = net::Address{"127.0.0.1", 0};
  try {
    if (role == "worker") {
      ps::Client client(options, job, number(2));
      work(client, job);
      return 0;
    }
    if (role == "server") serve(ps::ServerProcess(options, job, number(2)));
    options.log = options.place->open_log();
    ps::NodeThread manager(options);
    manager.start([&](ps::Environment& environment) {
      return std::make_unique<ps::Manager>(job, environment);
    });
    options.place->announce(manager.endpoint());
    serve(manager);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{} {}: {}\n", role, number(2), error.what());
    return 1;
  }
}
