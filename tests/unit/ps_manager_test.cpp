// The manager on a disk and a clock that a test holds: what it makes of a log that ends too early,
// of a folder that cannot be written, and of time that it slept through.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "support/ps_desk.h"
#include "support/scratch.h"
#include "trireme/core/error.h"
#include "trireme/format/folder.h"
#include "trireme/ps/client_node.h"
#include "trireme/ps/manager.h"
#include "trireme/ps/snapshot_files.h"

namespace trireme::ps {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const std::vector<Decision> kTwoLives{LifeBegins{{Role::Server, 0}, 1, 70},
                                      LifeBegins{{Role::Server, 1}, 1, 71}};

void hear(Manager& manager, const JobConfig& job, uint32_t server) {
  manager.receive(
      encode({.job = job.id(), .from = {Role::Server, server}, .life = 1}, Heartbeat{}));
}

TEST(Manager, GoesOnWithTheFirstRangesWhereItDied) {
  const JobConfig job = two_servers();
  Desk desk;
  std::vector<Decision> decisions = kTwoLives;
  decisions.push_back(RangeAssigned{0, {.epoch = 1, .chain = {{0, 1}, {1, 1}}}});
  desk.log = log_of(decisions);
  Manager manager(job, desk);
  manager.tick();
  EXPECT_EQ(manager.view().generation, 0) << "nothing was lost, so nothing returns to a snapshot";
  for (const Assignment& range : manager.view().ranges) EXPECT_EQ(range.chain.size(), 2);
}

/// It died after it had taken out the head, and before it ordered the snapshot again.
TEST(Manager, OrdersASnapshotAgainWhoseHeadIsGone) {
  const JobConfig job = two_servers();
  Desk desk;
  std::vector<Decision> decisions = kTwoLives;
  for (RangeId range = 0; range < job.ranges; ++range)
    decisions.push_back(RangeAssigned{range, {.epoch = 1, .chain = {{0, 1}, {1, 1}}}});
  decisions.push_back(SnapshotOrdered{{.snapshot = 1}});
  decisions.push_back(LifeEnds{{Role::Server, 0}});
  decisions.push_back(RangeAssigned{0, {.epoch = 2, .chain = {{1, 1}}}});
  desk.log = log_of(decisions);
  Manager manager(job, desk);
  EXPECT_EQ(manager.view().snapshot.snapshot, 1);
  manager.tick();
  EXPECT_EQ(manager.view().snapshot.snapshot, 2);
  EXPECT_FALSE(manager.books().order_is_lost());
}

TEST(Manager, OutlivesAFolderThatCannotBeWritten) {
  JobConfig job = two_servers();
  job.timing.snapshot_every = milliseconds(1);
  Desk desk;
  desk.log = log_of(kTwoLives);
  desk.folder_is_good = false;
  Manager manager(job, desk);
  const auto go_on_for = [&](Time time) {
    for (const Time end = desk.time + time; desk.time < end; desk.time += milliseconds(100)) {
      hear(manager, job, 0);
      hear(manager, job, 1);
      manager.tick();
    }
  };
  go_on_for(seconds(5));
  EXPECT_EQ(manager.view().snapshot.snapshot, 0);
  ASSERT_EQ(desk.notes.size(), 3) << "once in two seconds";
  EXPECT_EQ(desk.notes[0],
            "manager: cannot begin the snapshot of step 0: cannot create step-00000000.tmp: "
            "read-only; trying again");
  desk.folder_is_good = true;
  go_on_for(seconds(3));
  EXPECT_EQ(manager.view().snapshot.snapshot, 1);
}

/// SIGSTOP, and SIGCONT much later: the first message that it reads is of one server, and the
/// others were just as alive.
TEST(Manager, EndsNobodyForItsOwnSleep) {
  const JobConfig job = two_servers();
  Desk desk;
  desk.log = log_of(kTwoLives);
  Manager manager(job, desk);
  for (int i = 0; i < 100; ++i, desk.time += milliseconds(100)) {
    hear(manager, job, 0);
    hear(manager, job, 1);
    manager.tick();
  }
  desk.time += seconds(60);
  hear(manager, job, 0);
  desk.time += milliseconds(1);
  manager.tick();
  EXPECT_TRUE(manager.books().lives({0, 1}));
  EXPECT_TRUE(manager.books().lives({1, 1}));
}

/// A server died while the manager was away. The log says that it holds the range; if the manager
/// let one go that it does not need, perhaps the last one went.
TEST(Manager, LetsNoHolderGoBeforeItHearsAllOthers) {
  JobConfig job = two_servers();
  job.servers = 3;
  job.ranges = 1;
  Desk desk;
  std::vector<Decision> decisions = kTwoLives;
  decisions.push_back(LifeBegins{{Role::Server, 2}, 1, 72});
  decisions.push_back(RangeAssigned{0, {.epoch = 1, .chain = {{0, 1}, {1, 1}, {2, 1}}}});
  desk.log = log_of(decisions);
  Manager manager(job, desk);
  const auto hear_for = [&](Time time, const std::vector<uint32_t>& servers) {
    for (const Time end = desk.time + time; desk.time < end; desk.time += milliseconds(100)) {
      for (const uint32_t server : servers) hear(manager, job, server);
      manager.tick();
    }
  };
  const auto targets = place_ranges(1, {0, 1, 2}, 2)[0];
  const uint32_t extra = 3 - targets[0] - targets[1];
  hear_for(job.timing.dead_after / 2, {targets[0], extra});
  EXPECT_EQ(manager.view().ranges[0].chain.size(), 3);
  hear_for(job.timing.dead_after, {0, 1, 2});
  const std::vector<Member> left = manager.view().ranges[0].chain;
  ASSERT_EQ(left.size(), 2);
  for (const Member& member : left) EXPECT_NE(member.index, extra);
}

void greet(Manager& manager, const JobConfig& job, uint64_t nonce) {
  manager.receive(encode({.job = job.id(), .from = {Role::Worker, 0}},
                         Hello{.nonce = nonce, .fingerprint = job.fingerprint()}));
}

/// The first welcome was lost, and so may be the one of the life that the same greeting begins
/// later: whoever waits for it must get another.
TEST(Manager, WelcomesAProcessAsOftenAsItGreets) {
  const JobConfig job = two_servers();
  Desk desk;
  desk.log = log_of(kTwoLives);
  Manager manager(job, desk);
  greet(manager, job, 80);
  for (const Time end = 3 * job.timing.dead_after; desk.time < end;
       desk.time += milliseconds(100)) {
    hear(manager, job, 0);
    hear(manager, job, 1);
    manager.tick();
  }
  ASSERT_FALSE(manager.books().node({Role::Worker, 0})->lives);
  for (int i = 0; i < 2; ++i) {
    greet(manager, job, 80);
    const auto* welcome = std::get_if<Welcome>(&desk.sent.back());
    ASSERT_NE(welcome, nullptr);
    EXPECT_EQ(welcome->life, 2);
    desk.sent.emplace_back();
  }
}

/// A late greeting of a process that is dead came between a process and its welcome, which was
/// lost. Its nonce is of an earlier life now: without a word it would greet with it for ever.
TEST(Manager, LetsAProcessGreetAnewWhoseLifeEndedUnheard) {
  const JobConfig job = two_servers();
  Desk desk, of_worker;
  desk.log = log_of(kTwoLives);
  Manager manager(job, desk);
  ClientNode worker(0, job, of_worker);
  const auto greet_as_worker = [&] {
    of_worker.time += seconds(1);
    worker.tick();
    greet(manager, job, std::get<Hello>(of_worker.sent.back()).nonce);
  };
  greet_as_worker();
  greet(manager, job, 80);
  greet_as_worker();
  ASSERT_TRUE(std::holds_alternative<LifeEnded>(desk.sent.back()));
  worker.receive(encode({.job = job.id(), .from = kManager}, desk.sent.back()));
  greet_as_worker();
  const auto* welcome = std::get_if<Welcome>(&desk.sent.back());
  ASSERT_NE(welcome, nullptr);
  worker.receive(encode({.job = job.id(), .from = kManager}, *welcome));
  EXPECT_EQ(worker.life(), 3);
}

/// The view of the new generation came between the answers of two ranges, and before the manager's
/// word that the worker's life is over: the read would have been half old and half new.
TEST(ClientNode, MixesNoAnswersFromBeforeAndAfterAReturnToASnapshot) {
  const JobConfig job = two_servers();
  Desk desk;
  ClientNode worker(0, job, desk);
  worker.tick();
  View view;
  view.version = 1;
  view.ranges.assign(job.ranges, {.epoch = 1, .chain = {{0, 1}}});
  worker.receive(
      encode({.job = job.id(), .from = kManager},
             Welcome{.nonce = std::get<Hello>(desk.sent.back()).nonce, .life = 1, .view = view}));
  bool is_read = false;
  worker.start({.table = 0, .pull = true}, [&](const ClientNode::Result&) { is_read = true; });
  const auto reply_as = [&](uint32_t generation, RangeId range) {
    const RequestId id{
        .life = 1, .number = std::get<Request>(desk.sent.back()).id.number, .range = range};
    worker.receive(
        encode({.job = job.id(), .generation = generation, .from = {Role::Server, 0}, .life = 1},
               Reply{.id = id, .values = std::string(8, '\0')}));
  };
  reply_as(0, 0);
  view.version = 2;
  view.generation = 1;
  for (Assignment& range : view.ranges) range.epoch = 2;
  worker.receive(encode({.job = job.id(), .generation = 1, .from = kManager}, ViewChange{view}));
  EXPECT_EQ(worker.life(), 0);
  reply_as(1, 1);
  reply_as(1, 2);
  EXPECT_FALSE(is_read);
  desk.time += seconds(1);
  worker.tick();
  EXPECT_TRUE(std::holds_alternative<Hello>(desk.sent.back())) << "it begins another life";
}

/// Servers may stop, and workers are told to read the end, also when some server was lost after it.
TEST(Books, StayOverWhenTheSnapshotHasAllTheWork) {
  for (const bool saved : {true, false}) {
    const JobConfig job = two_servers();
    Books books(job);
    for (Task task = 0; task < books.num_tasks(); ++task) books.apply(TaskDone{task, 0});
    if (saved) books.apply(SnapshotOrdered{{.snapshot = 1, .clock = books.end_clock()}});
    if (saved) books.apply(SnapshotComplete{1});
    books.apply(JobOver{});
    books.apply(RolledBack{std::vector<Assignment>(job.ranges)});
    EXPECT_EQ(books.view().over, saved);
    EXPECT_EQ(books.all_done(), saved);
  }
}

/// It cannot be done again: workers may have read it and ended. Nor does it help to start anew.
TEST(Manager, EndsWhenTheResultIsLost) {
  JobConfig job = two_servers();
  job.copies = 0;
  Desk desk;
  std::vector<Decision> decisions = kTwoLives;
  for (RangeId range = 0; range < job.ranges; ++range)
    decisions.push_back(RangeAssigned{range, {.epoch = 1, .chain = {{range % 2, 1}}}});
  for (Task task = 0; task < Books(job).num_tasks(); ++task) decisions.push_back(TaskDone{task, 0});
  decisions.push_back(JobOver{});
  decisions.push_back(LifeBegins{{Role::Server, 1}, 2, 72});  // it was killed, and started again
  desk.log = log_of(decisions);
  for (int life = 0; life < 2; ++life) {
    Manager manager(job, desk);
    manager.keep_result();
    try {
      manager.tick();
      ADD_FAILURE() << "it goes on";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   "all work was done, but a range lost all its servers before the job had ended, "
                   "and with it the result: take snapshots, or more copies than 0");
    }
  }
}

/// A disk that is full and stays so: servers say what they cannot write, and no part comes.
class SnapshotWithoutProgress : public testing::Test {
 protected:
  SnapshotWithoutProgress() {
    job_.data.batches_per_epoch = 4;
    job_.timing.snapshot_every = seconds(10);
    job_.timing.save_within = seconds(30);
    desk_.log = log_of(kTwoLives);
  }
  void go_on(Manager& manager, Time time) {
    for (const Time end = desk_.time + time; desk_.time < end; desk_.time += milliseconds(500)) {
      hear(manager, job_, 0);
      hear(manager, job_, 1);
      manager.tick();
    }
  }
  void save(Manager& manager, RangeId range) {
    const uint64_t snapshot = manager.view().snapshot.snapshot;
    manager.receive(encode({.job = job_.id(), .from = {Role::Server, 0}, .life = 1},
                           SnapshotDone{.table = 0, .range = range, .snapshot = snapshot}));
  }
  JobConfig job_ = two_servers();
  Desk desk_;
};

TEST_F(SnapshotWithoutProgress, IsGivenUpAndTheNextOneIsTried) {
  Manager manager(job_, desk_);
  go_on(manager, seconds(11));
  ASSERT_EQ(manager.view().snapshot.snapshot, 1);
  save(manager, 0);
  go_on(manager, seconds(29));
  save(manager, 1);  // slow, and not stuck
  go_on(manager, seconds(29));
  EXPECT_EQ(manager.view().snapshot.snapshot, 1);
  go_on(manager, seconds(2));
  ASSERT_EQ(desk_.notes.size(), 1);
  EXPECT_EQ(desk_.notes[0],
            "manager: the snapshot of step 0 made no progress for 30 s; training goes on without "
            "it");
  EXPECT_EQ(manager.view().snapshot.snapshot, 2) << "the disk may have room again";
  desk_.acts.clear();
  for (RangeId range = 0; range < job_.ranges; ++range) save(manager, range);
  EXPECT_EQ(manager.books().snapshot().snapshot, 2);
  // A manager that died before its log named the new one would need the old one.
  EXPECT_EQ(desk_.acts, (std::vector<std::string>{"complete", "sync", "prune before 2"}));
}

TEST_F(SnapshotWithoutProgress, IsAnErrorIfItIsTheLast) {
  for (Task task = 0; task < Books(job_).num_tasks(); ++task)
    desk_.log += log_of({TaskDone{task, 0}});
  Manager manager(job_, desk_);
  manager.want_last_snapshot();
  try {
    go_on(manager, seconds(35));
    ADD_FAILURE() << "the job ended without its result";
  } catch (const CheckpointError& error) {
    EXPECT_STREQ(error.what(),
                 "the snapshot of step 0 made no progress for 30 s: all work is done, but not "
                 "saved");
  }
  EXPECT_FALSE(manager.view().over);
}

TEST(SnapshotFiles, AreCompletedOnceHoweverOftenItIsAsked) {
  const test::Scratch scratch;
  const JobConfig job = two_servers();
  const SnapshotFiles files(job, {.folder = scratch / "snapshots"});
  const SnapshotOrder order{.snapshot = 4, .clock = 2, .step = 2};
  files.begin(order);
  std::vector<std::string> contents;
  for (RangeId range = 0; range < job.ranges; ++range)
    contents.push_back(files.save({4, 2, 0, range}, RangeState({&job, 0, range}).image()));
  files.complete(order, contents);
  files.complete(order, contents);
  EXPECT_TRUE(files.load({4, 2, 0, 1}).has_value());
  SnapshotOrder other = order;
  other.snapshot = 5;
  EXPECT_THROW(files.complete(other, contents), CheckpointError) << "that one was never written";
}

TEST(JobConfig, DenseTablesThatNoServerHasRoomForAreRefused) {
  JobConfig job = two_servers();
  job.workers = 1;
  job.server_bytes = 24;  // 6 floats, twice: 48 bytes
  EXPECT_NO_THROW(check(job));
  job.tables[0].rule = make_sgd({.momentum = 0.9});
  try {
    check(job);
    FAIL() << "accepted";
  } catch (const MisuseError& error) {
    EXPECT_STREQ(error.what(),
                 "job 'manager': server 0 would have 48 bytes of dense tables and of what their "
                 "rules keep, of its own ranges and as copies, but each may take 24; add servers, "
                 "or raise server_bytes (sync.server_memory_mib)");
  }
  job.tables[0].tau = -1;
  EXPECT_THROW(check(job), MisuseError);
}

/// Given to a worker that died, and long after to another, who has only begun.
TEST(Manager, GivesABackupOfATaskByTheTimeOfWhoeverHasIt) {
  JobConfig job = two_servers();
  job.workers = 3;
  job.data = {.batches_per_epoch = 3, .steps_per_task = 3};
  job.tables[0].consistency = Consistency::Free;
  job.timing.backup_after = seconds(10);
  Desk desk;
  std::vector<Decision> decisions = kTwoLives;
  for (uint32_t worker = 0; worker < 3; ++worker)
    decisions.push_back(LifeBegins{{Role::Worker, worker}, 1, 80 + worker});
  desk.log = log_of(decisions);
  Manager manager(job, desk);
  const auto ask = [&](uint32_t worker) {
    desk.sent.clear();
    manager.receive(encode({.job = job.id(), .from = {Role::Worker, worker}, .life = 1},
                           TaskRequest{.number = 1}));
    const auto found = std::ranges::find_if(
        desk.sent, [](const Body& body) { return std::holds_alternative<TaskReply>(body); });
    return found != desk.sent.end() && std::get<TaskReply>(*found).answer == Answer::Work;
  };
  manager.tick();
  EXPECT_TRUE(ask(0));
  for (const Time end = desk.time + seconds(20); desk.time < end; desk.time += milliseconds(100)) {
    for (const NodeId id :
         {NodeId{Role::Server, 0}, {Role::Server, 1}, {Role::Worker, 1}, {Role::Worker, 2}})
      manager.receive(encode({.job = job.id(), .from = id, .life = 1}, Heartbeat{}));
    manager.tick();
  }
  ASSERT_FALSE(manager.books().node({Role::Worker, 0})->lives);
  EXPECT_TRUE(ask(1));
  EXPECT_FALSE(ask(2)) << "a backup of work that has just begun";
  for (const Time end = desk.time + seconds(11); desk.time < end; desk.time += milliseconds(100))
    for (uint32_t worker = 1; worker < 3; ++worker)
      manager.receive(
          encode({.job = job.id(), .from = {Role::Worker, worker}, .life = 1}, Heartbeat{}));
  EXPECT_TRUE(ask(2));
}

TEST(JobConfig, EpochsWithoutBatchesAreRefused) {
  JobConfig job = two_servers();
  job.data.batches_per_epoch = 0;
  try {
    check(job);
    FAIL() << "accepted";
  } catch (const MisuseError& error) {
    EXPECT_STREQ(error.what(),
                 "job 'manager': an epoch has 0 batches; give it at least 1, and an empty job 0 "
                 "epochs");
  }
}

/// Parts of it may have been saved, and nobody will ever complete it.
TEST(Manager, AbandonsAnOrderThatIsVoid) {
  JobConfig job = two_servers();
  job.copies = 0;
  Desk desk;
  std::vector<Decision> decisions = kTwoLives;
  for (RangeId range = 0; range < job.ranges; ++range)
    decisions.push_back(RangeAssigned{range, {.epoch = 1, .chain = {{range % 2, 1}}}});
  decisions.push_back(SnapshotOrdered{{.snapshot = 1, .clock = 2, .step = 2}});
  decisions.push_back(LifeBegins{{Role::Server, 1}, 2, 72});  // it was killed, and started again
  desk.log = log_of(decisions);
  Manager manager(job, desk);
  manager.tick();
  EXPECT_EQ(manager.view().generation, 1);
  EXPECT_EQ(desk.acts, (std::vector<std::string>{"sync", "abandon step 2"}));
}

/// The folder has what another run saved at later steps.
TEST(SnapshotFiles, AJobKeepsItsNewestWhateverElseIsThere) {
  const test::Scratch scratch;
  const JobConfig job = two_servers();
  const SnapshotFiles files(job, {.folder = scratch / "snapshots", .keep = 2});
  for (const uint64_t step : std::vector<uint64_t>{70, 80, 90, 10, 20}) {
    const SnapshotOrder order{.snapshot = step, .clock = step, .step = step};
    files.begin(order);
    std::vector<std::string> contents;
    for (RangeId range = 0; range < job.ranges; ++range)
      contents.push_back(files.save({step, step, 0, range}, RangeState({&job, 0, range}).image()));
    files.complete(order, contents);
    EXPECT_TRUE(files.load({step, step, 0, 0}).has_value());
    files.prune(order);
    EXPECT_TRUE(files.load({step, step, 0, 0}).has_value()) << step;
  }
  EXPECT_EQ(format::list(scratch / "snapshots"), (std::vector<int64_t>{20, 80, 90}));
  const SnapshotOrder given_up{.snapshot = 30, .clock = 30, .step = 30};
  files.begin(given_up);
  EXPECT_EQ(format::list_unfinished(scratch / "snapshots").size(), 0);
  EXPECT_TRUE(std::filesystem::exists(scratch / "snapshots/step-00000030.tmp"));
  files.abandon(given_up);
  EXPECT_FALSE(std::filesystem::exists(scratch / "snapshots/step-00000030.tmp"));
}

/// In the middle of a message: as if that were to blame, it would go on with decisions that are not
/// in the log, and tell them to whoever speaks next.
TEST(Manager, EndsWhenItCannotWriteItsLog) {
  const JobConfig job = two_servers();
  Desk desk;
  desk.log = log_of(kTwoLives);
  Manager manager(job, desk);
  desk.lease_is_lost = true;
  EXPECT_THROW(greet(manager, job, 80), LogError);
  EXPECT_TRUE(desk.sent.empty());
}

}  // namespace
}  // namespace trireme::ps
