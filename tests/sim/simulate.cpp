// One run of a scenario: the nodes, and what must hold when it is over.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/checks.h"
#include "sim/misfortunes.h"
#include "sim/sim_worker.h"
#include "trireme/ps/data_order.h"
#include "trireme/ps/values.h"

namespace trireme::sim {

namespace {

using std::chrono::milliseconds;

class Simulation {
 public:
  explicit Simulation(const Scenario& scenario)
      : scenario_(scenario), job_(scenario_.job), world_(scenario.seed) {
    world_.weather = scenario.weather;
    world_.lose_power = scenario.lose_power;
    world_.on_send = [this](NodeId from, NodeId, const std::string& bytes) { watch(from, bytes); };
    if (std::getenv("PS_TRACE"))
      world_.on_note = [this](const std::string& line) {
        fmt::print("{:>9} us  {}\n", world_.now().count(), line);
      };
  }

  Outcome run() {
    ps::check(job_);
    start_nodes();
    misfortunes_.plan();
    try {
      play();
    } catch (const std::exception& error) {
      breach(Promise::Progress, error.what());
    }
    check_history();
    collect_figures();
    return std::move(outcome_);
  }

 private:
  ps::Manager* manager() { return world_.node<ps::Manager>(ps::kManager); }

  void breach(Promise promise, std::string sentence) {
    outcome_.breaches.push_back({promise, std::move(sentence)});
  }

  void start_nodes() {
    world_.add(ps::kManager, [this](ps::Environment& environment) {
      auto manager = std::make_unique<ps::Manager>(job_, environment);
      if (scenario_.last_snapshot) manager->want_last_snapshot();
      return manager;
    });
    for (uint32_t server = 0; server < job_.servers; ++server) start_server(server);
    for (uint32_t worker = 0; worker < job_.workers; ++worker)
      world_.add({Role::Worker, worker}, [this, worker](ps::Environment& environment) {
        return std::make_unique<SimWorker>(worker, scenario_, environment, history_,
                                           outcome_.repeated);
      });
  }

  void start_server(uint32_t server) {
    world_.add(server_id(server), [this, server](ps::Environment& environment) {
      return std::make_unique<ps::Server>(server, job_, environment);
    });
  }

  /// The network sees which server answers for a range in an epoch.
  void watch(NodeId from, const std::string& bytes) {
    constexpr size_t kKindAt = 21;
    static const auto kReply = static_cast<char>(ps::Body(ps::Reply{}).index());
    if (from.role != Role::Server || bytes[kKindAt] != kReply) return;
    const ps::Message message = ps::decode(bytes);
    const auto& reply = std::get<ps::Reply>(message.body);
    const ps::Member owner{from.index, message.header.life};
    const auto [at, is_new] = owners_.try_emplace({reply.id.range, reply.epoch}, owner);
    if (!is_new && at->second != owner)
      breach(Promise::Owner, fmt::format("range {} in epoch {}: server {} life {}, and server {} "
                                         "life {}",
                                         reply.id.range, reply.epoch, at->second.index,
                                         at->second.life, owner.index, owner.life));
  }

  void play() {
    const auto never = [] { return false; };
    world_.run(scenario_.storm, never);
    world_.heal_all();
    world_.weather.lose = world_.lose_power = 0;
    for (const NodeId id : world_.ids())
      if (!misfortunes_.gone().contains(id)) world_.restart(id);
    // What the last crash did shows only when the manager has noticed it.
    world_.run(scenario_.storm + 2 * job_.timing.dead_after, never);
    const Time limit = scenario_.storm + std::chrono::seconds(30);
    while (!(manager()->is_finished() && is_settled())) {
      if (world_.now() > limit)
        return breach(Promise::Progress,
                      manager()->is_finished()
                          ? "chains did not settle in 30 quiet seconds" + standstill()
                          : "the job did not end in 30 quiet seconds" + standstill());
      world_.run(world_.now() + milliseconds(50), never);
    }
    check_end();
    end_workers();
  }

  /// A worker that dies when all work is done, and comes back, can still read.
  void end_workers() {
    const NodeId last{Role::Worker, 0};
    world_.crash(last);
    if (!misfortunes_.gone().contains(last)) world_.restart(last);
    const auto all_ended = [this] {
      return std::ranges::all_of(world_.ids(), [this](NodeId id) {
        const auto* worker = world_.node<SimWorker>(id);
        return !worker || worker->has_ended();
      });
    };
    if (!world_.run(world_.now() + std::chrono::seconds(5), all_ended))
      breach(Promise::Progress, "a worker could not read the end");
  }

  /// Who waits for what, when nothing goes on.
  std::string standstill() {
    const ps::SnapshotOrder& open = manager()->view().snapshot;
    std::string text =
        fmt::format("\n    snapshot {} at clock {} is open", open.snapshot, open.clock);
    for (const ps::ActiveWorker& active : manager()->view().workers) {
      const auto holding = manager()->books().holding(active.worker);
      text +=
          fmt::format("\n    worker {} life {} from clock {}, task {} at clock {}", active.worker,
                      active.life, active.start, holding ? static_cast<int64_t>(holding->task) : -1,
                      holding ? holding->clock : 0);
      if (const auto* worker = world_.node<SimWorker>({Role::Worker, active.worker}))
        text += fmt::format(", now {} operations in flight, view {}", worker->in_flight(),
                            worker->view().version);
    }
    for_each_part([&](ps::TableId table, ps::RangeId range) {
      const ps::Assignment& assignment = manager()->view().ranges[range];
      if (assignment.joiner)
        text += fmt::format("\n    table {} range {}: server {} joins in epoch {}", table, range,
                            assignment.joiner->index, assignment.epoch);
      for (const ps::Member member : assignment.chain)
        if (const auto* here = replica(member, table, range); here && here->state())
          text += fmt::format(
              "\n    table {} range {} server {}: epoch {}, {} pulls wait, entry {}, round {}, "
              "snapshot {} of {}{}",
              table, range, member.index, here->epoch(), here->parked(), here->last(),
              here->state()->round(), here->state()->last_snapshot(),
              here->state()->snapshot_order().snapshot, here->has_joined() ? ", joined" : "");
    });
    return text;
  }

  const ps::Replica* replica(ps::Member member, ps::TableId table, ps::RangeId range) {
    const auto* server = world_.node<ps::Server>(server_id(member.index));
    return server && server->life() == member.life ? server->replica(table, range) : nullptr;
  }

  template <class Visit>
  void for_each_part(Visit visit) {
    for (ps::TableId table = 0; table < job_.tables.size(); ++table)
      for (ps::RangeId range = 0; range < job_.ranges; ++range) visit(table, range);
  }

  bool is_settled() {
    bool settled = true;
    for_each_part([&](ps::TableId table, ps::RangeId range) {
      const ps::Assignment& assignment = manager()->view().ranges[range];
      settled = settled && !assignment.joiner;
      for (const ps::Member member : assignment.chain) {
        const auto* here = replica(member, table, range);
        const auto* head = replica(assignment.chain[0], table, range);
        settled =
            settled && here && here->state() && head && here->last() == head->last() &&
            here->epoch() == assignment.epoch &&
            (!job_.in_lockstep(table) || here->state()->round() * job_.workers == job_.batches());
      }
    });
    return settled;
  }

  std::string bytes_of(ps::Member member, ps::TableId table, ps::RangeId range) {
    return replica(member, table, range)->state()->image().frame().flat();
  }

  void check_end() {
    for_each_part([&](ps::TableId table, ps::RangeId range) {
      const auto& chain = manager()->view().ranges[range].chain;
      const std::string head = bytes_of(chain[0], table, range);
      for (const ps::Member member : chain)
        if (bytes_of(member, table, range) != head)
          breach(Promise::Same, fmt::format("table {}, range {}: server {} differs from its head",
                                            table, range, member.index));
    });
    check_work();
    if (job_.in_lanes()) check_weights();
  }

  const ps::RangeState& end_state(ps::TableId table, ps::RangeId range) {
    return *replica(manager()->view().ranges[range].chain[0], table, range)->state();
  }

  void check_work() {
    for (ps::RangeId range = 0; range < job_.ranges; ++range) {
      const auto ledger = ps::values_of<double>(end_state(kLedger, range).read({}).view());
      for (size_t batch = 0; batch < ledger.size(); ++batch)
        if (ledger[batch] != 1)
          breach(ledger[batch] > 1 ? Promise::Once : Promise::Work,
                 fmt::format("in the end range {} has batch {} {} times", range, batch,
                             ledger[batch]));
    }
    for (uint64_t key = 0; key < kKeys; ++key) {
      const ps::RangeId range = ps::range_of(key, job_.ranges);
      const float count = ps::values_of<float>(end_state(kCounters, range).read({key}).view())[0];
      if (count != static_cast<float>(job_.batches() / kKeys))
        breach(Promise::Work, fmt::format("in the end counter {} is {} of {}", key, count,
                                          job_.batches() / kKeys));
    }
  }

  void check_weights() {
    constexpr double kRounding = 1e-12;  // fp64; sums in another order
    const std::vector<double> expected = plain_loop(job_);
    std::vector<double> weights;
    for (ps::RangeId range = 0; range < job_.ranges; ++range)
      for (const double value : ps::values_of<double>(end_state(kWeights, range).read({}).view()))
        weights.push_back(value);
    for (size_t i = 0; i < weights.size(); ++i)
      if (!(std::abs(weights[i] - expected[i]) <= kRounding))
        breach(Promise::Exact, fmt::format("weight {} is {:.17g}; a plain loop gives {:.17g}", i,
                                           weights[i], expected[i]));
  }

  void check_history() {
    Breaches& found = outcome_.breaches;
    check_reads(job_, history_, found);
    check_bound(job_, history_, found);
    check_whole_clocks(job_, history_, found);
    if (manager() && manager()->view().generation == 0) check_counters(job_, history_, found);
  }

  void collect_figures() {
    outcome_.events = world_.events();
    outcome_.crashes = misfortunes_.crashes();
    outcome_.partitions = misfortunes_.partitions();
    outcome_.falls = misfortunes_.falls();
    outcome_.joins = misfortunes_.joins();
    outcome_.departures = misfortunes_.departures();
    outcome_.happened = world_.happened();
    outcome_.writes = history_.writes.size();
    outcome_.reads = history_.reads.size();
    outcome_.writes_without_manager =
        static_cast<uint64_t>(std::ranges::count_if(history_.writes, [&](const Write& write) {
          return write.begin > scenario_.manager_leaves && write.end < scenario_.manager_returns;
        }));
    for (const NodeId id : world_.ids())
      if (const auto* node = world_.node<ps::Node>(id))
        for (const auto& [why, times] : node->refused()) outcome_.refused += times;
    if (!manager()) return;
    outcome_.rollbacks = manager()->view().generation;
    outcome_.restored = manager()->view().restored.snapshot > 0 ? 1 : 0;
    if (job_.copies > 0 && outcome_.rollbacks > 0 && !scenario_.blackout)
      breach(Promise::Copies, fmt::format("the servers returned {} times", outcome_.rollbacks));
    outcome_.snapshots = manager()->books().snapshot().snapshot;
    for (const ps::Assignment& assignment : manager()->view().ranges)
      outcome_.epochs += assignment.epoch;
  }

  Scenario scenario_;
  const ps::JobConfig& job_;
  World world_;
  History history_;
  Outcome outcome_;
  Misfortunes misfortunes_{scenario_, world_, [this](uint32_t server) { start_server(server); }};
  std::map<std::pair<ps::RangeId, ps::Epoch>, ps::Member> owners_;
};

}  // namespace

Outcome simulate(const Scenario& scenario) {
  return Simulation(scenario).run();
}

}  // namespace trireme::sim
