// A history of a table that workers write down by themselves while servers and the manager are
// killed, and a checker that looks at nothing else.
#include <gmock/gmock.h>

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "sim/linear.h"
#include "support/scratch.h"
#include "tests/ps/ps_processes.h"
#include "trireme/ps/client.h"
#include "trireme/ps/values.h"

namespace trireme::test {
namespace {

using namespace std::chrono_literals;
using History = std::map<uint64_t, std::vector<sim::CounterOp>>;  ///< by key

constexpr uint64_t kKeys = 8;
const PsJob kJob{.servers = 3, .workers = 3, .copies = 1, .batches = 3 * 1000, .counts = true};

ps::Time now() {
  return std::chrono::duration_cast<ps::Time>(std::chrono::steady_clock::now().time_since_epoch());
}

ps::NodeOptions options_in(const std::string& place, const ps::JobConfig& job) {
  return {.connections = {.job = job.name,
                          .secret = net::Secret::from_text("a secret of tests only"),
                          .lanes = job.lanes},
          .place = ps::make_manager_place(place, job.name)};
}

/// Adds to one counter after another and reads others; each operation with the time in which it
/// went on. One that fails has no end: it may have happened. If it has, the batch is a repeated one
/// for whoever does it again.
void work(ps::Client& client, History& history, std::atomic<int>& steps) {
  std::mt19937 random(static_cast<unsigned>(now().count()));
  const auto do_one = [&](ps::Client::Operation op, bool is_read) {
    const uint64_t key = is_read ? random() % kKeys : std::mt19937_64(op.batch)() % kKeys;
    op.keys = {key};
    if (!is_read) op.values = ps::bytes_of_values<double>(std::vector<double>{1});
    sim::CounterOp& done =
        history[key].emplace_back(sim::CounterOp{.begin = now(), .is_read = is_read});
    try {
      const auto result = client.wait(client.start(std::move(op)));
      done.end = now();
      if (is_read) done.value = ps::values_of<double>(result.values())[0];
      if (result.repeated > 0) history[key].pop_back();
    } catch (const ps::LifeLost&) {
      if (is_read) history[key].pop_back();  // it saw nothing
      throw;
    }
  };
  while (const auto work = client.next()) {
    try {
      for (std::size_t step = 0; step < work->batches.size(); ++step) {
        const ps::Client::Operation at{.clock = work->clock + step,
                                       .view_version = work->view_version};
        auto add = at, read = at;
        add.push = true;
        add.batch = work->batches[step];
        read.pull = true;
        do_one(std::move(add), false);
        do_one(std::move(read), true);
        ++steps;
        std::this_thread::sleep_for(2ms);  // as if it computed
      }
      client.done(*work);
    } catch (const ps::LifeLost&) {  // and the next one begins
    }
  }
}

TEST(PsHistory, OfCountersUnderKillsIsLinearizablePerKey) {
  const Scratch folder;
  const ps::JobConfig job = ps_job(kJob);
  PsProcesses processes(folder / "", kJob);
  std::vector<std::unique_ptr<ps::Client>> clients;
  for (uint32_t w = 0; w < kJob.workers; ++w)
    clients.push_back(std::make_unique<ps::Client>(options_in(folder / "", job), job, w));
  std::vector<History> histories(kJob.workers);
  std::atomic<int> steps = 0;
  {
    std::vector<std::jthread> workers;
    for (uint32_t w = 0; w < kJob.workers; ++w)
      workers.emplace_back([&, w] { work(*clients[w], histories[w], steps); });
    for (const auto& [role, index] : {std::pair("server", 0U), {"manager", 0U}, {"server", 2U}}) {
      const int before = steps;
      ASSERT_TRUE(eventually([&] { return steps > before + 300; }, 20s)) << role;
      processes.kill_and_restart(role, index);
      EXPECT_LT(steps, static_cast<int>(kJob.batches)) << "the job was over before";
    }
  }
  std::size_t ops = 0;
  for (uint64_t key = 0; key < kKeys; ++key) {
    std::vector<sim::CounterOp> all;
    for (const History& one : histories)
      if (one.contains(key)) all.insert(all.end(), one.at(key).begin(), one.at(key).end());
    ops += all.size();
    EXPECT_TRUE(sim::is_linearizable(all)) << "key " << key;
    // The checker is awake: with one addition less it is wrong, if all others did happen.
    if (std::ranges::count(all, ps::Time::max(), &sim::CounterOp::end) > 0) continue;
    const auto add = std::ranges::find(all, false, &sim::CounterOp::is_read);
    ASSERT_NE(add, all.end());
    all.erase(add);
    EXPECT_FALSE(sim::is_linearizable(std::move(all))) << "key " << key;
  }
  fmt::print("{} operations on {} counters, each in the order of some single one\n", ops, kKeys);
}

}  // namespace
}  // namespace trireme::test
