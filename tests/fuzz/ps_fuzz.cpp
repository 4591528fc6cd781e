// Any bytes as messages of the parameter server: refused with a CommError, or written back as the
// same bytes. Then manager, server and client get them, each with a piece of a running job behind
// it, and must stay on their feet.
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.h"
#include "trireme/core/error.h"
#include "trireme/ps/client_node.h"
#include "trireme/ps/manager.h"
#include "trireme/ps/server.h"

using namespace trireme;
using namespace trireme::ps;

namespace {

/// Keeps what was sent, and has an empty disk.
class Desk final : public Environment {
 public:
  Time now() override { return now_ += std::chrono::milliseconds(10); }
  uint64_t random() override { return 7; }
  void send(NodeId to, uint32_t, Frame message) override { sent.emplace_back(to, message.flat()); }
  void append(std::string_view) override {}
  void sync() override {}
  std::string read_log() override { return {}; }
  void replace_log(std::string_view) override {}
  void begin(const SnapshotOrder&) override {}
  void save(const SnapshotPart&, RangeState::Image) override {}
  void complete(const SnapshotOrder&, const std::vector<std::string>&) override {}
  void prune(const SnapshotOrder&) override {}
  void abandon(const SnapshotOrder&) override {}
  std::optional<RangeState::Image> load(const SnapshotPart&) override { return {}; }
  void note(const std::string&) override {}

  std::vector<std::pair<NodeId, std::string>> sent;

 private:
  Time now_{0};
};

JobConfig small_job() {
  JobConfig job;
  job.name = "fuzz";
  job.servers = job.workers = 1;
  job.ranges = 2;
  job.data = {.epochs = 1, .batches_per_epoch = 4, .steps_per_task = 2};
  job.tables = {{.name = "dense", .elems = 4, .rule = make_sgd({})},
                {.name = "sparse",
                 .kind = TableKind::Sparse,
                 .elems = 2,
                 .consistency = Consistency::Stale,
                 .tau = 1,
                 .rule = make_adagrad({})}};
  return job;
}

/// One of each role, who have met, and messages of a strange peer in between.
struct Job {
  JobConfig config = small_job();
  Desk desk;
  Manager manager{config, desk};
  Server server{0, config, desk};
  ClientNode client{0, config, desk};

  Node& node(NodeId id) {
    if (id.role == Role::Manager) return manager;
    return id.role == Role::Server ? static_cast<Node&>(server) : client;
  }
  void deliver(size_t most) {
    for (size_t i = 0; i < desk.sent.size() && i < most; ++i) {
      const auto [to, bytes] = desk.sent[i];
      node(to).receive(bytes);
    }
    desk.sent.clear();
  }
  void tick() {
    manager.tick();
    server.tick();
    client.tick();
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  std::string text(reinterpret_cast<const char*>(data), bytes);
  Job job;
  job.client.on_begin = [&] {
    job.client.ask_task({}, [&](const TaskReply& reply) {
      for (TableId table = 0; table < 2; ++table)
        job.client.start(
            {.table = table,
             .clock = reply.clock,
             .view_version = reply.view_version,
             .pull = true,
             .keys = table == 1 ? std::vector<uint64_t>{1, 2, 3} : std::vector<uint64_t>{}},
            [](const ClientNode::Result&) {});
    });
  };
  for (int i = 0; i < 4; ++i) {
    job.tick();
    job.deliver(64);
  }
  fuzz::must(job.server.replica(0, 0) && job.server.replica(1, 1) && job.client.life() == 1);
  // The job's name is a hash that no mutation finds: each piece of the input is given it.
  for (std::string_view left = text; left.size() >= 2;) {
    const size_t length =
        std::min<size_t>(static_cast<uint8_t>(left[0]) | (left[1] & 1) << 8, left.size() - 2);
    std::string message(left.substr(2, length));
    left.remove_prefix(2 + length);
    const std::string name = encode({.job = job.config.id()}, Hello{}).flat().substr(0, 8);
    std::copy_n(name.begin(), std::min(name.size(), message.size()), message.begin());
    try {
      const Message parsed = decode(message);
      fuzz::must(encode(parsed.header, parsed.body).flat() == message);
    } catch (const CommError&) {
    }
    for (const NodeId id : {kManager, NodeId{Role::Server, 0}, NodeId{Role::Worker, 0}})
      job.node(id).receive(message);
    job.deliver(64);
    job.tick();
  }
  return 0;
}
