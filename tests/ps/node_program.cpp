// One node of a small job, for tests that kill it:
//
//   ps_node ROLE INDEX FOLDER SERVERS WORKERS COPIES BATCHES
//
// Nodes find each other through a file store in FOLDER. A worker trains the table of ps_job.h, and
// prints the weights that it reads when all work is done.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/ps/ps_job.h"
#include "trireme/net/store.h"
#include "trireme/ps/manager.h"
#include "trireme/ps/server.h"
#include "trireme/ps/session.h"
#include "trireme/ps/values.h"

namespace {

using namespace trireme;
using namespace trireme::test;

constexpr std::chrono::milliseconds kStep{5};

net::Deadline soon() {
  return net::Clock::now() + std::chrono::seconds(10);
}

void work(ps::Session& session, const ps::JobConfig& job) {
  ps::Clock last = 0;
  uint64_t view = 0;
  bool has_stepped = false;
  for (;;) {
    try {
      const auto work = session.next();
      if (!work) break;
      for (std::size_t step = 0; step < work->batches.size(); ++step) {
        ps::Client::Operation op{.clock = work->clock + step, .view_version = work->view_version};
        op.pull = true;
        const auto weights = ps::values_of<double>(session.start(op).get().values);
        op.pull = false;
        op.push = true;
        op.batch = work->batches[step];
        op.weight = weight_of(op.batch);
        auto gradient = gradient_of(op.batch, weights);
        for (double& one : gradient) one *= op.weight;
        op.values = ps::bytes_of_values<double>(gradient);
        (void)session.start(op).get();
        last = op.clock + 1;
        view = work->view_version;
        if (!std::exchange(has_stepped, true)) {  // a line a step would fill the pipe to the test
          fmt::print("step {}\n", op.batch);
          std::fflush(stdout);
        }
        std::this_thread::sleep_for(kStep);  // as if it computed
      }
      session.done(*work);
    } catch (const ps::LifeLost&) {
      fmt::print("a life was lost\n");
    }
  }
  const ps::Clock all = job.batches() / job.workers;
  const auto read =
      session.start({.clock = std::max(last, all), .view_version = view, .pull = true}).get();
  for (const double one : ps::values_of<double>(read.values)) fmt::print("weight {:.17g}\n", one);
  fmt::print("lives lost: {}\n", session.lives_lost());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) return 2;
  const std::string role = argv[1], folder = argv[3];
  const auto number = [&](int i) { return static_cast<uint32_t>(std::atoi(argv[i])); };
  const ps::JobConfig job = ps_job(
      {.servers = number(4), .workers = number(5), .copies = number(6), .batches = number(7)});
  const ps::NodeId me{role == "manager"  ? ps::Role::Manager
                      : role == "server" ? ps::Role::Server
                                         : ps::Role::Worker,
                      number(2)};
  const ps::Nodes nodes{job.servers, job.workers};
  const net::Secret secret = net::Secret::from_text("a secret of tests only");
  const auto store = net::open_file_store(
      folder + "/store", {.job = job.name, .role = "rank", .rank = 0, .size = nodes.count()},
      soon());
  const auto key = [&](ps::NodeId node) { return fmt::format("ps/{}", nodes.rank_of(node)); };
  ps::NodeProcess::Options options{
      .connections = {.job = job.name,
                      .secret = secret,
                      .nodes = nodes,
                      .me = me,
                      .find = [&](ps::NodeId node) -> std::optional<net::Address> {
                        if (node.role == ps::Role::Worker) return std::nullopt;
                        const auto text = store->get(key(node), soon());
                        if (!text) return std::nullopt;
                        return net::parse_address(*text);
                      }},
      .folder = folder + "/ps"};
  options.note = [&](const std::string& line) {
    fmt::print(stderr, "{}: {}\n", name_of(me), line);
  };
  if (me.role != ps::Role::Worker) {
    options.connections.listen = net::Address{"127.0.0.1", 0};
    options.listening = [&](const net::Address& at) {
      store->set(key(me), at.to_string(), soon());
    };
  }
  try {
    if (me.role == ps::Role::Worker) {
      ps::Session session(options, job, me.index);
      work(session, job);
      return 0;
    }
    const ps::NodeProcess process(options, [&](ps::Environment& environment) {
      return me.role == ps::Role::Manager
                 ? std::unique_ptr<ps::Node>(std::make_unique<ps::Manager>(job, environment))
                 : std::make_unique<ps::Server>(me.index, job, environment);
    });
    while (process.failure() == nullptr) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::rethrow_exception(process.failure());
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name_of(me), error.what());
    return 1;
  }
}
