// A process of the job of stale_work.h: the manager, a server, or a worker, which prints what it
// wrote and saw when all work is done.
//
//   ps_stale TAU
//
//   write 17                       the push of clock 17 was acknowledged
//   read 18 7 5 7 7 6 7 ...        at clock 18, what was seen: by range, by worker
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>

#include "tests/ps/stale_work.h"
#include "trireme/ps/role.h"

using namespace trireme;

int main(int argc, char** argv) try {
  const ps::JobConfig job = test::stale_job(argc > 1 ? std::atoi(argv[1]) : 0);
  const auto role = ps::role_of_environment();
  if (!role) return 2;
  if (role->node.role != ps::Role::Worker) {
    ps::serve(job, *role);
    return 0;
  }
  ps::Client client(ps::node_options(*role, job), job, role->node.index);
  const test::StaleLog log = test::stale_work(client, role->node.index);
  for (const ps::Clock clock : log.writes) fmt::print("write {}\n", clock);
  for (const test::StaleRead& read : log.reads) {
    fmt::print("read {}", read.clock);
    for (const auto& range : read.seen) fmt::print(" {}", fmt::join(range, " "));
    fmt::print("\n");
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
