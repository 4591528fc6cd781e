// Servers, and copies of a range, on a disk and a clock that a test holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <semaphore>
#include <utility>

#include "support/ps_desk.h"
#include "support/scratch.h"
#include "trireme/ps/client_node.h"
#include "trireme/ps/replica.h"
#include "trireme/ps/save_thread.h"
#include "trireme/ps/server.h"
#include "trireme/ps/snapshot_files.h"

namespace trireme::ps {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A server around one copy of a range, which keeps what that sends.
class Around final : public ReplicaHost {
 public:
  Around(const JobConfig& job, uint32_t server, const Assignment& assignment)
      : me_{server, 1}, replica({&job, 0, 0}, *this) {
    view_.workers_version = 1;
    view_.workers = {{0, 1, 0}};
    view_.ranges = {assignment};
    replica.install(assignment);
    replica.follow_view();
  }
  Environment& environment() override { return desk; }
  const View& view() const override { return view_; }
  Member self() const override { return me_; }
  void send(NodeId to, const Body& body) override {
    if (to.role == Role::Server) sent.push_back(body);
  }
  void refuse(NodeId, Refusal) override { ADD_FAILURE() << "refused"; }
  uint64_t room_bytes() const override { return room; }
  void grew(uint64_t) override {}
  std::string describe_memory() const override { return "server 1 has 9 of its 10 bytes in use"; }

 private:
  const Member me_;
  View view_;

 public:
  Desk desk;
  std::vector<Body> sent;
  uint64_t room = UINT64_MAX;
  Replica replica;
};

JobConfig one_free_range() {
  JobConfig job = two_servers();
  job.ranges = 1;
  job.data.batches_per_epoch = 300;
  job.tables[0].consistency = Consistency::Free;
  return job;
}

const Assignment kWithJoiner{.epoch = 1, .chain = {{0, 1}}, .joiner = Member{1, 1}};

/// Brings what one has sent to the other, and the answers, until there is nothing more to say.
void exchange(Around& tail, Around& joiner) {
  while (!tail.sent.empty() || !joiner.sent.empty()) {
    for (Body& body : std::exchange(tail.sent, {})) {
      if (const auto* piece = std::get_if<Transfer>(&body))
        joiner.replica.on_transfer(*piece, {0, 1});
      if (auto* forward = std::get_if<Forward>(&body))
        joiner.replica.on_forward(std::move(*forward), {0, 1});
    }
    for (const Body& body : std::exchange(joiner.sent, {})) {
      if (const auto* came = std::get_if<TransferAck>(&body))
        tail.replica.on_transfer_ack(*came, {1, 1});
      if (const auto* ack = std::get_if<Ack>(&body)) tail.replica.on_ack(*ack, {1, 1});
    }
  }
}

/// All commits of the range wait for the joiner, so that it must not wait for any time to pass.
TEST(Replica, AJoinerCatchesUpAsFastAsItAnswers) {
  const JobConfig job = one_free_range();
  Around tail(job, 0, kWithJoiner), joiner(job, 1, kWithJoiner);
  for (Batch batch = 0; batch < 200; ++batch)
    tail.replica.on_request({.id = {.worker = 0, .life = 1, .clock = batch, .number = batch},
                             .epoch = 1,
                             .push = true,
                             .batch = batch,
                             .values = std::string(6 * sizeof(float), '\0')},
                            {Role::Worker, 0});
  exchange(tail, joiner);
  EXPECT_EQ(tail.replica.last(), 201) << "who works, and the pushes";
  EXPECT_EQ(joiner.replica.last(), 201);
  EXPECT_EQ(tail.replica.behind(), 0);
}

/// A worker that pushes to one server, and how often it has sent that.
struct Pushes {
  Pushes() : client(0, job, desk) {
    View view;
    view.version = 1;
    view.workers = {{0, 1, 0}};
    view.ranges = {{.epoch = 1, .chain = {{0, 1}}}};
    desk.way = 7;
    client.follow(1, view);
    client.start({.push = true, .pull = true, .values = std::string(6 * sizeof(float), '\0')},
                 [](const ClientNode::Result&) {});
  }
  int after(Time more) {
    desk.time += more;
    client.tick();
    return static_cast<int>(std::ranges::count_if(
        desk.sent, [](const Body& one) { return std::holds_alternative<Request>(one); }));
  }
  RequestId id() const {
    for (const Body& one : desk.sent)
      if (const auto* request = std::get_if<Request>(&one)) return request->id;
    return {};
  }

  JobConfig job = one_free_range();
  Desk desk;
  ClientNode client;
};

TEST(Client, LeavesToAnOpenStreamWhatItHasTaken) {
  Pushes push;
  EXPECT_EQ(push.after(milliseconds(0)), 1);
  EXPECT_EQ(push.after(milliseconds(7900)), 1);
  EXPECT_EQ(push.after(milliseconds(200)), 2) << "the server may have passed over it";
  EXPECT_EQ(push.after(milliseconds(15900)), 2) << "each time for twice as long";
  EXPECT_EQ(push.after(milliseconds(200)), 3);
  EXPECT_EQ(push.after(seconds(31)), 3);
  for (int i = 0; i < 10; ++i) push.after(seconds(600));
  const int before = push.after(milliseconds(0));
  EXPECT_EQ(push.after(seconds(500)), before) << "at most every 512 s";
}

TEST(Client, SendsAgainAtOnceWhatAStreamThatBrokeHasTaken) {
  Pushes push;
  EXPECT_EQ(push.after(milliseconds(1)), 1);
  push.desk.way = 0;
  EXPECT_EQ(push.after(milliseconds(1)), 2);
  EXPECT_EQ(push.after(milliseconds(400)), 2) << "nobody takes it";
  EXPECT_EQ(push.after(milliseconds(200)), 3);
}

TEST(Client, SendsAgainWhatAServerDidNotWantYet) {
  for (const uint32_t generation : {0u, 1u}) {
    Pushes push;
    EXPECT_EQ(push.after(milliseconds(1)), 1);
    push.client.receive(encode(
        {.job = push.job.id(), .generation = generation, .from = {Role::Server, 0}, .life = 1},
        Refusal{.id = push.id(), .reason = Reason::OtherView}));
    EXPECT_EQ(push.after(milliseconds(100)), 2) << generation;
  }
}

/// The folder of the first is gone: it would be tried again and again.
TEST(SaveThread, LeavesWhatNobodyWants) {
  const test::Scratch scratch;
  const JobConfig job = two_servers();
  const auto files =
      std::make_shared<SnapshotFiles>(job, SnapshotFiles::Options{.folder = scratch / "s"});
  files->begin({.snapshot = 2, .step = 2});
  std::vector<uint64_t> saved;
  std::vector<std::string> notes;
  std::binary_semaphore done{0};
  SaveThread thread(
      files,
      [&](const SnapshotPart& part, const std::string&) {
        saved.push_back(part.snapshot);
        done.release();
      },
      [](const SnapshotPart& part) { return part.snapshot == 2; },
      [&](const std::string& line) { notes.push_back(line); });
  thread.save({1, 1, 0, 0}, RangeState({&job, 0, 0}).image());
  thread.save({2, 2, 0, 1}, RangeState({&job, 0, 1}).image());
  done.acquire();
  EXPECT_EQ(saved, std::vector<uint64_t>{2});
  EXPECT_EQ(notes, std::vector<std::string>{});
}

/// Of a large checkpoint: all of it would take longer than the manager waits for a sign of life.
TEST(Server, SaysThatItLivesBetweenTheRangesThatItReads) {
  JobConfig job = two_servers();
  job.ranges = 12;
  job.timing.heartbeat = milliseconds(500);
  Desk desk;
  desk.load_time = seconds(2);
  Server server(0, job, desk);
  server.tick();
  Time last = desk.time, longest{0};
  View view;
  view.version = 1;
  view.ranges.assign(job.ranges, {.epoch = 1, .chain = {{0, 1}}});
  server.receive(
      encode({.job = job.id(), .from = kManager},
             Welcome{.nonce = std::get<Hello>(desk.sent.back()).nonce, .life = 1, .view = view}));
  for (int turn = 0; turn < 100; ++turn) {
    desk.sent.clear();
    const Time now = desk.time;
    server.tick();
    const bool says = std::ranges::any_of(
        desk.sent, [](const Body& body) { return std::holds_alternative<Heartbeat>(body); });
    if (says) longest = std::max(longest, now - std::exchange(last, now));
    desk.time += milliseconds(5);
  }
  EXPECT_GE(desk.time, 12 * desk.load_time) << "nothing was read";
  for (RangeId range = 0; range < job.ranges; ++range)
    EXPECT_NE(server.replica(0, range), nullptr) << range;
  EXPECT_LT(longest, 2 * desk.load_time);
}

}  // namespace
}  // namespace trireme::ps
