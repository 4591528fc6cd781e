// Messages and the manager's log as bytes, and what is refused.
#include <gtest/gtest.h>

#include <limits>

#include "sim/world.h"
#include "trireme/core/error.h"
#include "trireme/ps/archive.h"
#include "trireme/ps/client_node.h"
#include "trireme/ps/manager.h"
#include "trireme/ps/server.h"
#include "trireme/ps/values.h"

namespace trireme::ps {
namespace {

View some_view() {
  View view{.version = 9, .generation = 1, .restored = {2}, .workers_version = 8};
  view.ranges = {{.epoch = 3, .chain = {{1, 2}, {0, 1}}, .joiner = Member{2, 1}}, {.epoch = 1}};
  view.servers = {{1, {2, {{"127.0.0.1:1", "@x", "h"}}}}};
  view.workers = {{.worker = 1, .life = 2, .start = 7}};
  view.snapshot = {4, 12};
  return view;
}

Request some_push() {
  return {.id = {.worker = 1, .life = 2, .table = 3, .clock = 4, .number = 5, .range = 6},
          .epoch = 7,
          .view_version = 8,
          .push = true,
          .batch = 9,
          .weight = 1.5,
          .keys = {1, 2},
          .values = std::string(700, 'v')};
}

std::vector<Body> one_of_each() {
  return {Hello{1, 2, {{"127.0.0.1:1", "@x", "h"}}},
          Welcome{1, 2, some_view()},
          Rejected{1, "no"},
          LifeEnded{3},
          Heartbeat{4, true, {.bytes = 5}},
          ViewChange{some_view()},
          some_push(),
          Reply{.id = some_push().id,
                .epoch = 1,
                .version = 2,
                .repeated = true,
                .values = std::string("xy")},
          Refusal{.id = some_push().id, .reason = Reason::NoMemory, .sentence = "no"},
          Forward{1,
                  2,
                  3,
                  4,
                  {{.kind = EntryKind::Push, .request = some_push()},
                   {.kind = EntryKind::Workers, .workers_version = 3, .workers = {{1, 2, 3}}},
                   {.kind = EntryKind::Round, .clock = 4, .squares = 0.5},
                   {.kind = EntryKind::Snapshot, .snapshot = {1, 2}},
                   {}}},
          Ack{1, 2, 3, 4, 5},
          Transfer{1, 2, 3, 4, 5, 6, std::string("state")},
          TransferAck{1, 2, 3, 4},
          Joined{1, 2},
          RoundWhole{1, 2, 3, 0.5},
          RoundAsk{1, 2, 3},
          RoundReady{1, 2, 3, 0.5},
          SnapshotDone{1, 2, 3, "contents"},
          TaskRequest{1, Task{2}},
          TaskReply{1, 2, Answer::Work, 3, 4, 5},
          Report{1, 2, "loss"},
          ReportTaken{1, 2},
          StatusAsk{},
          Status{"{}"}};
}

TEST(Protocol, EveryMessageComesBackFromItsBytes) {
  const Header header{.job = 1, .generation = 2, .from = {Role::Server, 3}, .life = 4};
  const std::vector<Body> bodies = one_of_each();
  ASSERT_EQ(bodies.size(), std::variant_size_v<Body>);
  for (size_t kind = 0; kind < bodies.size(); ++kind) {
    ASSERT_EQ(bodies[kind].index(), kind);
    const Frame frame = encode(header, bodies[kind]);
    const std::string bytes = frame.flat();
    for (const Frame& way : {Frame(bytes), frame}) {  // in one piece, as from a stream; in parts
      const Message message = decode(way);
      EXPECT_EQ(message.body.index(), kind);
      EXPECT_EQ(message.header.life, 4);
      EXPECT_EQ(encode(message.header, message.body).flat(), bytes);
    }
    for (size_t cut = 0; cut < bytes.size(); ++cut)
      EXPECT_THROW(decode(bytes.substr(0, cut)), CommError) << kind << ' ' << cut;
    EXPECT_THROW(decode(bytes + '\0'), CommError);
  }
}

/// What is large is neither copied nor misaligned.
TEST(Protocol, APayloadStaysWhereItIs) {
  const Frame frame = encode({}, some_push());
  ASSERT_EQ(frame.parts().size(), 2);
  EXPECT_EQ(frame.parts()[0].size() % kAlignBytes, 0);
  const Payload whole(frame.flat());
  Frame received;
  received.add(whole);
  const Payload values = std::get<Request>(decode(received).body).values;
  EXPECT_EQ(values.data(), whole.data() + frame.parts()[0].size());
  EXPECT_EQ(values.owner(), whole.owner());
}

std::string sentence_of(const std::string& bytes) {
  try {
    decode(bytes);
  } catch (const CommError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Protocol, SaysWhatIsWrong) {
  std::string bytes = encode({}, Heartbeat{}).flat();
  bytes[21] = 99;
  EXPECT_EQ(sentence_of(bytes), "sent a message of the unknown kind 99");
  bytes = encode({}, TaskRequest{}).flat();
  bytes.back() = 2;
  EXPECT_EQ(sentence_of(bytes), "sent the flag 2");
  bytes = encode({}, Forward{}).flat();
  bytes.replace(bytes.size() - 4, 4, "\xff\xff\xff\xff");
  EXPECT_EQ(sentence_of(bytes), "sent a list of 4294967295 items in the last 0 bytes");
}

/// A worker uses its memory again once it is answered: what a server keeps for longer it must copy,
/// and so it must know that it was lent.
TEST(Protocol, WhatIsLentIsStillLentInAMessage) {
  for (const auto lent : {Payload::Lent::Yes, Payload::Lent::No}) {
    auto memory = std::make_shared<std::string>(5000, 'a');
    Request request;
    request.values = Payload(memory, *memory);
    const Frame sent = encode({}, Body(request));
    Frame arrived;  // as a stream puts it together
    for (const Payload& part : sent.parts())
      arrived.add(part.size() < memory->size() ? part : Payload(memory, part.view(), lent));
    const Message message = decode(arrived);
    const Payload& values = std::get<Request>(message.body).values;
    EXPECT_EQ(values.data(), memory->data()) << "not copied on the way";
    const Payload kept = values.kept();
    std::fill(memory->begin(), memory->end(), 'b');
    EXPECT_EQ(kept.view()[0], lent == Payload::Lent::Yes ? 'a' : 'b');
  }
}

TEST(ManagerLog, ATornEndCostsOnlyItsLastRecord) {
  const std::vector<Decision> decisions{LifeBegins{{Role::Server, 0}, 1, 77},
                                        RangeAssigned{0, some_view().ranges[0]}, TaskGiven{0, 1, 5},
                                        TaskDone{0}};
  std::string log;
  std::vector<size_t> ends{0};
  for (const Decision& decision : decisions) {
    log += encode_record(decision);
    ends.push_back(log.size());
  }
  for (size_t bytes = 0; bytes <= log.size(); ++bytes) {
    const LogContent content = read_records(std::string_view(log).substr(0, bytes));
    const size_t whole =
        static_cast<size_t>(std::ranges::upper_bound(ends, bytes) - ends.begin() - 1);
    EXPECT_EQ(content.decisions.size(), whole);
    EXPECT_EQ(content.bytes, ends[whole]);
  }
  log[ends[2] + 14] ^= 1;
  EXPECT_EQ(read_records(log).decisions.size(), 2) << "a damaged record ends the log";
}

/// A worker that says what it likes.
class Stranger final : public ClientNode {
 public:
  using ClientNode::ClientNode;
  void say(NodeId to, const Body& body) { send_to(to, body); }
  void shout(NodeId to, std::string bytes) { environment_.send(to, 0, std::move(bytes)); }
};

class Refusals : public testing::Test {
 protected:
  static constexpr NodeId kServer{Role::Server, 0}, kWorker{Role::Worker, 0};

  Refusals() {
    job.name = "refusals";
    job.ranges = 1;
    job.data.batches_per_epoch = 10;
    job.tables = {
        {.name = "w", .elems = 2, .consistency = Consistency::Free, .rule = make_sgd({.lr = -1})},
        {.name = "rows",
         .kind = TableKind::Sparse,
         .elems = 16,
         .consistency = Consistency::Free,
         .rule = make_sgd({.lr = -1})}};
    job.timing.retry = std::chrono::hours(1);
    job.server_bytes = 20'000;  // one slab of rows, and not two
    world.add(kManager, [this](Environment& e) { return std::make_unique<Manager>(job, e); });
    world.add(kServer, [this](Environment& e) { return std::make_unique<Server>(0, job, e); });
    world.add(kWorker, [this](Environment& e) { return std::make_unique<Stranger>(0, job, e); });
    world.on_send = [this](NodeId from, NodeId, const std::string& bytes) {
      if (from != kServer) return;
      const Message message = decode(bytes);
      if (const auto* refusal = std::get_if<Refusal>(&message.body)) refused = refusal->sentence;
      if (const auto* reply = std::get_if<Reply>(&message.body)) replies.push_back(*reply);
    };
    run();
    worker().ask_task({}, [this](const TaskReply& reply) { task = reply; });
    run();
  }

  void run() {
    world.run(world.now() + std::chrono::seconds(2), [] { return false; });
  }
  Stranger& worker() { return *world.node<Stranger>(kWorker); }
  Server& server() { return *world.node<Server>(kServer); }
  Manager& manager() { return *world.node<Manager>(kManager); }

  Request good_push() {
    return {.id = {.worker = 0, .life = worker().life(), .table = 0, .clock = 0, .number = 1},
            .epoch = server().view().ranges[0].epoch,
            .view_version = task.view_version,
            .push = true,
            .batch = 0,
            .values = bytes_of_values<float>(std::vector<float>{1, 2})};
  }

  std::string state() {
    return server().replica(0, 0)->state()->image().frame().flat() +
           server().replica(1, 0)->state()->image().frame().flat();
  }

  /// The server refuses with the sentence, counts it, and changes nothing.
  void expect_refused(const Body& body, const std::string& sentence) {
    const std::string before = state();
    const auto total = [&] {
      uint64_t sum = 0;
      for (const auto& [why, times] : server().refused()) sum += times;
      return sum;
    };
    const uint64_t counted = total();
    refused.clear();
    worker().say(kServer, body);
    run();
    EXPECT_EQ(refused, sentence);
    EXPECT_EQ(total(), counted + 1);
    EXPECT_EQ(state(), before);
  }

  JobConfig job;
  sim::World world{1};
  TaskReply task;
  std::string refused;
  std::vector<Reply> replies;
};

TEST_F(Refusals, AGoodPushIsAppliedOnceHoweverOftenItComes) {
  for (int i = 0; i < 3; ++i) worker().say(kServer, good_push());
  run();
  EXPECT_EQ(refused, "");
  EXPECT_EQ(replies.size(), 3);
  EXPECT_EQ(values_of<float>(server().replica(0, 0)->state()->read({}).view()),
            (std::vector<float>{1, 2}));
}

TEST_F(Refusals, APullWaitsForThePushThatWasSentBeforeIt) {
  Request pull = good_push();
  pull.id.clock = 1;
  pull.id.number = 2;
  pull.push = false;
  pull.pull = true;
  pull.values = {};
  worker().say(kServer, pull);
  run();
  EXPECT_TRUE(replies.empty()) << "the push of clock 0 was lost";
  worker().say(kServer, good_push());
  run();
  ASSERT_EQ(replies.size(), 2);
  EXPECT_EQ(replies[0].id, pull.id);
  EXPECT_EQ(values_of<float>(replies[0].values.view()), (std::vector<float>{1, 2}));
}

TEST_F(Refusals, NameWhatIsWrongWithARequest) {
  ASSERT_EQ(task.answer, Answer::Work);
  Request push = good_push();
  push.id.table = 5;
  expect_refused(push, "there is no table 5; the job has 2");
  push = good_push();
  push.id.range = 8;
  expect_refused(push, "there is no range 8; the job has 1");
  push = good_push();
  push.values = std::string(12, '1');
  expect_refused(push, "a push to range 0 of table 'w' has 12 bytes, but 8 are expected");
  push = good_push();
  push.keys = {1};
  expect_refused(push, "table 'w' is dense, but the request names 1 keys");
  push = good_push();
  push.epoch = 0;
  expect_refused(push, "range 0 is in epoch 1, and the request is for epoch 0");
  push = good_push();
  push.view_version = 1000;
  expect_refused(push, fmt::format("the request is for view 1000, and server 0 knows {}",
                                   server().view().version));
  push = good_push();
  push.id.worker = 3;
  expect_refused(push, "worker 0 speaks for worker 3");
  push = good_push();
  push.batch = 10;
  expect_refused(push, "batch 10 is not in the data order, which has 10");
  push = good_push();
  push.id.clock = 4;
  expect_refused(push, "worker 0 pushes clock 4 before clock 0");
  push = good_push();
  push.weight = -1;
  expect_refused(push,
                 "a push to table 'w' has weight -1, divisor 1 and rate 1; all must be finite, the "
                 "weight at least 0 and the divisor more");
}

TEST_F(Refusals, ABatchWithoutSamplesCountsAndChangesNothing) {
  Request push = good_push();
  push.weight = std::numeric_limits<double>::quiet_NaN();
  expect_refused(
      push,
      "a push to table 'w' has weight nan, divisor 1 and rate 1; all must be finite, the "
      "weight at least 0 and the divisor more");
  push = good_push();
  push.weight = 0;
  push.values = {};
  worker().say(kServer, push);
  run();
  EXPECT_EQ(replies.size(), 1);
  EXPECT_EQ(values_of<float>(server().replica(0, 0)->state()->read({}).view()),
            (std::vector<float>{0, 0}));
  EXPECT_TRUE(server().replica(0, 0)->state()->applied().contains(0));
}

TEST_F(Refusals, NobodyHasDoneATaskThatItDoesNotHave) {
  ASSERT_EQ(task.task, 0);
  worker().say(kManager, TaskRequest{99, Task{5}});
  worker().say(kManager, TaskRequest{100, Task{5000}});
  run();
  EXPECT_FALSE(manager().books().is_done(5));
  EXPECT_EQ(manager().refused().at("bad request"), 2);
  EXPECT_EQ(manager().books().num_done(), 0);
}

/// They would end each other's lives for ever.
TEST_F(Refusals, TwoProcessesAreNotOneWorker) {
  worker().shout(kManager, encode({.job = job.id(), .from = kWorker},
                                  Hello{.nonce = 4711, .fingerprint = job.fingerprint()})
                               .flat());
  try {
    world.run(world.now() + std::chrono::milliseconds(2), [] { return false; });
    worker().shout(kManager,
                   encode({.job = job.id(), .from = kWorker, .life = 2}, Heartbeat{}).flat());
    run();
    FAIL() << "both go on";
  } catch (const RejectedError& error) {
    EXPECT_STREQ(error.what(),
                 "another process is worker 0 now, and this one, of life 1, is not any more; start "
                 "each once");
  }
}

TEST_F(Refusals, TheManagerSaysWhoCannotTakePart) {
  std::string said;
  world.on_send = [&](NodeId from, NodeId, const std::string& bytes) {
    const Message message = decode(bytes);
    if (const auto* rejected = std::get_if<Rejected>(&message.body); rejected && from == kManager)
      said = rejected->sentence;
  };
  worker().shout(kManager, encode({.job = job.id(), .from = {Role::Worker, 9}},
                                  Hello{.nonce = 1, .fingerprint = job.fingerprint()})
                               .flat());
  run();
  EXPECT_EQ(said, "there is no worker 9: this job has at most 1");
  worker().shout(kManager,
                 encode({.job = job.id(), .from = {Role::Server, 1}}, Hello{.nonce = 1}).flat());
  run();
  EXPECT_EQ(said,
            "server 1 has another job 'refusals' than the manager: all processes must be given the "
            "same tables, ranges, data and rules");
  EXPECT_EQ(manager().refused().at("from a stranger"), 2);
}

TEST_F(Refusals, MessagesOfAnEarlierLifeAreOver) {
  const Request early = good_push();
  world.crash(kWorker);
  world.restart(kWorker);
  run();
  worker().ask_task({}, [this](const TaskReply& reply) { task = reply; });
  run();
  EXPECT_EQ(worker().life(), 2);
  expect_refused(early, "life 1 of worker 0 is over; ask the manager for another");
}

TEST_F(Refusals, ALateGreetingEndsNoLife) {
  std::string greeting;
  const auto watch = std::move(world.on_send);
  world.on_send = [&](NodeId from, NodeId, const std::string& bytes) {
    if (from == kServer && std::holds_alternative<Hello>(decode(bytes).body)) greeting = bytes;
  };
  world.crash(kServer);
  world.restart(kServer);
  run();
  EXPECT_EQ(server().life(), 2);
  const std::string early = greeting;
  world.crash(kServer);
  world.restart(kServer);
  run();
  EXPECT_EQ(server().life(), 3);
  worker().shout(kManager, early);
  run();
  EXPECT_EQ(server().life(), 3);
  EXPECT_NE(server().replica(0, 0), nullptr);
}

TEST_F(Refusals, AWaitingClientSaysWhatItWaitsFor) {
  world.crash(kServer);
  worker().start({.table = 0, .clock = 3, .view_version = task.view_version, .pull = true},
                 [](const ClientNode::Result&) {});
  EXPECT_EQ(worker().waiting_for(),
            "worker 0 at clock 3: a pull of table 'w' waits for range 0 since 0 ms");
}

TEST_F(Refusals, AFullServerSaysHowFullItIs) {
  Request push = good_push();
  push.id.table = 1;
  push.keys.resize(400);
  for (size_t i = 0; i < push.keys.size(); ++i) push.keys[i] = i;
  push.values = std::string(400 * 16 * sizeof(float), '\0');
  expect_refused(push,
                 "server 0 has 8 of its 20000 bytes in use, and 19992 bytes are left where range 0 "
                 "is held; a push needs 25600 more: add servers, raise server_bytes, or evict rows "
                 "with most_rows");
}

TEST_F(Refusals, StrangersAndGarbageChangeNothing) {
  const std::string before = state();
  const Body push = good_push();
  worker().shout(kServer, encode({.job = 1, .from = kWorker, .life = 1}, push).flat());
  worker().shout(kServer, "garbage");
  worker().shout(kServer,
                 encode({.job = job.id(), .from = kWorker, .life = 1}, push).flat().substr(0, 60));
  worker().shout(
      kServer,
      encode({.job = job.id(), .from = kWorker, .life = 1}, Forward{0, 0, 1, 1, {{}}}).flat());
  run();
  EXPECT_EQ(server().refused().at("of another job"), 1);
  EXPECT_EQ(server().refused().at("malformed"), 2);
  EXPECT_EQ(server().refused().at("for a range that is not here"), 1);
  EXPECT_EQ(state(), before);
  EXPECT_TRUE(replies.empty());
}

}  // namespace
}  // namespace trireme::ps
