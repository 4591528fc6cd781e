// Tables as a worker uses them, of a job whose nodes are threads of this process.
#include <gmock/gmock.h>

#include <cmath>
#include <numeric>
#include <thread>

#include "sim/random.h"
#include "support/scratch.h"
#include "trireme/core/error.h"
#include "trireme/format/folder.h"
#include "trireme/ps/join.h"
#include "trireme/ps/manager_place.h"
#include "trireme/ps/one_process_job.h"
#include "trireme/ps/table.h"
#include "trireme/ps/values.h"

namespace trireme::ps {
namespace {

using testing::HasSubstr;

JobConfig job_of(std::vector<TableConfig> tables, uint64_t batches) {
  JobConfig job{.name = "tables", .seed = 5, .servers = 2, .ranges = 6};
  job.data = {.batches_per_epoch = batches, .steps_per_task = 3};
  job.tables = std::move(tables);
  return job;
}

TableConfig dense(const std::string& name, uint64_t elems, Consistency consistency) {
  return {.name = name,
          .type = ValueType::Float64,
          .elems = elems,
          .consistency = consistency,
          .tau = consistency == Consistency::Stale ? 2 : 0,
          .rule = make_sgd({.lr = -1})};
}

/// Runs `work` as each of the job's workers.
void run_workers(const JobConfig& job,
                 const std::function<void(uint32_t, Client&, TrainingStep&)>& work) {
  OneProcessJob alone(job);
  std::vector<std::jthread> workers;
  for (uint32_t index = 0; index < job.workers; ++index)
    workers.emplace_back([&, index] {
      Client client(alone.options(), job, index);
      TrainingStep step(client, index);
      work(index, client, step);
    });
}

/// The sentence of the error.
template <class Mistake>
std::string sentence_of(const Mistake& mistake) {
  try {
    mistake();
  } catch (const MisuseError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Keys, TravelOnceEachInTheOrderInWhichTheyCome) {
  const Keys keys(std::vector<int64_t>{7, 9, 7, 7, -4});
  EXPECT_EQ(keys.distinct(), (std::vector<uint64_t>{7, 9, UINT64_MAX - 3}));
  EXPECT_EQ(keys.places(), (std::vector<uint32_t>{0, 1, 0, 0, 2}));
  EXPECT_TRUE(keys.has_repeats());
  EXPECT_FALSE(Keys(std::vector<uint64_t>{}).has_repeats());
  EXPECT_EQ(first_repeated(keys.distinct()), std::nullopt);
  EXPECT_EQ(first_repeated(std::vector<uint64_t>{1, 2, 1}), 1);
}

/// A worker never waits for a push here, and yet each pull has all that it pushed before.
TEST(Table, AWorkerReadsItsOwnWrites) {
  for (const auto consistency : {Consistency::Lockstep, Consistency::Stale, Consistency::Free}) {
    JobConfig job = job_of({dense("w", 20, consistency)}, 60);
    const auto worker = join(job);
    const Table weights = worker->table("w");
    std::vector<double> pulled(20);
    double pushed = 0;
    worker->train([&](TrainingStep& step) {
      weights.pull(step, pulled).wait();
      for (const double value : pulled) ASSERT_EQ(value, pushed) << step.clock();
      weights.push(step, std::vector<double>(20, 1));
      pushed += 1;
    });
    EXPECT_EQ(pushed, 60);
  }
}

/// Every operation is sent again every few milliseconds while it waits for the slow worker.
TEST(Table, ARetryIsAppliedOnce) {
  JobConfig job =
      job_of({dense("w", 20, Consistency::Lockstep), dense("v", 5, Consistency::Free)}, 16);
  job.workers = 2;
  job.timing.retry = Time(1);
  run_workers(job, [&](uint32_t index, Client& client, TrainingStep& step) {
    const Table weights(client, "w"), others(client, "v");
    std::vector<double> read(20), other(5);
    const TrainingStep& end = train(step, [&](TrainingStep&) {
      if (index == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      others.push(step, std::vector<double>(5, 1));
      weights.push_pull(step, std::vector<double>(20, 1), read).wait();
      for (const double value : read)
        ASSERT_EQ(value, static_cast<double>(step.clock() + 1));  // the mean of two ones
    });
    weights.pull(end, read).wait();
    others.pull(end, other).wait();
    EXPECT_EQ(read, std::vector<double>(20, 8));
    EXPECT_EQ(other, std::vector<double>(5, 8)) << "in stale and free, too";
  });
}

/// What has not changed does not travel, and what has changed does, whoever else reads.
TEST(Table, PullsOnlyWhatHasChanged) {
  const auto worker = join(job_of({dense("w", 50'000, Consistency::Free)}, 4));
  const Table weights = worker->table("w");
  std::vector<double> kept(50'000), other(50'000), all(50'000);
  worker->train([&](TrainingStep& step) {
    weights.pull_changes(step, kept).wait();
    weights.pull(step, all).wait();
    EXPECT_EQ(kept, all) << "of step " << step.clock();
    weights.pull_changes(step, kept).wait();  // somebody else has read: all of it comes
    EXPECT_EQ(kept, all);
    kept[3] = 77;
    weights.pull_changes(step, kept).wait();
    EXPECT_EQ(kept[3], 77) << "nothing has changed, so nothing came";
    weights.pull_changes(step, other).wait();
    EXPECT_EQ(other, all) << "another array";
    weights.push(step, std::vector<double>(50'000, 1));
  });
}

TEST(Table, ATableWithoutAPushIsToldSo) {
  auto weights_config = dense("w", 4, Consistency::Lockstep);
  const auto worker = join(job_of({weights_config, dense("frozen", 4, Consistency::Stale),
                                   dense("unused", 3, Consistency::Lockstep)},
                                  10));
  const Table weights = worker->table("w"), frozen = worker->table("frozen");
  std::vector<double> read(4);
  const TrainingStep& end = worker->train([&](TrainingStep& step) {
    frozen.pull(step, read).wait();
    if (step.batch() % 2 == 0) weights.push(step, std::vector<double>(4, 1));
    if (step.batch() % 4 == 1) {  // nothing to apply; the other odd batches say nothing at all
      step.weight = 0;
      weights.push(step, std::vector<double>(4, 99));
    }
  });
  weights.pull(end, read).wait();
  EXPECT_EQ(read, std::vector<double>(4, 5));
  frozen.pull(end, read).wait();
  EXPECT_EQ(read, std::vector<double>(4, 0));
}

/// In lockstep a worker's weight counts also where its batch names no row.
TEST(Table, ABatchWithoutKeysHasItsWeight) {
  auto rows = dense("rows", 1, Consistency::Lockstep);
  rows.kind = TableKind::Sparse;
  JobConfig job = job_of({rows}, 8);
  job.workers = 2;
  run_workers(job, [&](uint32_t index, Client& client, TrainingStep& step) {
    const Table table(client, "rows");
    std::vector<double> read(1);
    const TrainingStep& end = train(step, [&](TrainingStep&) {
      step.weight = index == 0 ? 1 : 3;
      if (index == 0)
        table.push(step, std::vector<uint64_t>{7}, std::vector<double>{8});
      else
        table.push(step, std::vector<uint64_t>{}, std::vector<double>{});
    });
    table.pull(end, std::vector<uint64_t>{7}, read).wait();
    EXPECT_EQ(read[0], 4 * 8 / 4.0);
  });
}

TEST(Table, SaysInOneSentenceWhatIsWrong) {
  const auto worker = join(job_of({dense("w", 4, Consistency::Lockstep),
                                   dense("v", 4, Consistency::Lockstep),
                                   {.name = "rows",
                                    .kind = TableKind::Sparse,
                                    .elems = 2,
                                    .consistency = Consistency::Free,
                                    .rule = make_sgd({})}},
                                  1));
  EXPECT_EQ(sentence_of([&] { (void)worker->table("x"); }),
            "there is no table 'x': job 'tables' has 'w', 'v', 'rows'");
  const Table w = worker->table("w"), rows = worker->table("rows");
  std::vector<double> four(4);
  std::vector<float> two(2);
  const Keys key(std::vector<uint64_t>{1});
  const TrainingStep& end = worker->train([&](TrainingStep& step) {
    EXPECT_EQ(sentence_of([&] { w.push(step, two); }),
              "table 'w' holds float64, and the array float32");
    EXPECT_EQ(sentence_of([&] { w.push(step, std::vector<double>(3)); }),
              "table 'w': the array has 3 numbers, but its values have 4");
    EXPECT_EQ(sentence_of([&] { rows.push(step, key, std::vector<float>(3)); }),
              "table 'rows': the array has 3 numbers, but the rows of 1 keys have 2");
    EXPECT_EQ(sentence_of([&] { (void)w.pull(step, key, four); }),
              "table 'w' is dense, so it has no keys: give values alone");
    EXPECT_EQ(sentence_of([&] { (void)rows.pull(step, two); }),
              "table 'rows' is sparse: give the keys of the rows, too");
    step.weight = -1;
    EXPECT_THAT(sentence_of([&] { w.push(step, four); }), HasSubstr("has weight -1"));
    step.weight = 1;
    EXPECT_EQ(sentence_of([&] {
                (void)worker->client().start({.table = 2, .keys = {5, 6, 5}});
              }),
              "key 5 of table 'rows' is named twice: add its rows up, or use Keys");
    EXPECT_EQ(sentence_of([&] { (void)worker->client().start({.table = 3}); }),
              "there is no table 3; the job has 3");
    auto early = w.push_pull(step, four, four);
    EXPECT_EQ(sentence_of([&] { early.wait(); }),
              "table 'w' cannot be read after clock 0 before table 'v' has its push, too: push to "
              "it first, then wait");
    EXPECT_EQ(sentence_of([&] { w.push(step, four); }),
              "table 'w' was pushed to at clock 0 already: add the gradients up, and push once");
  });
  EXPECT_EQ(sentence_of([&] { (void)end.batch(); }),
            "there is no batch: this worker has no work now");
  EXPECT_EQ(sentence_of([&] { w.push(const_cast<TrainingStep&>(end), four); }),
            "table 'w': there is no work to push for; push in the body of the loop");
  EXPECT_EQ(sentence_of([] { (void)join(job_of({dense("w", 4, Consistency::Stale)}, 1)); }),
            "accepted");
  EXPECT_EQ(sentence_of([] {
              auto table = dense("w", 4, Consistency::Stale);
              table.tau = -1;
              (void)join(job_of({table}, 1));
            }),
            "table 'w': tau is -1; use 0 for lockstep or more for stale");
}

/// Trains random rows, some of them twice in a batch, and a plain loop beside it.
void expect_a_plain_loop(const RulePtr& rule, Consistency consistency) {
  constexpr uint64_t kRows = 200, kElems = 5, kKeys = 64;
  const auto worker = join(job_of({{.name = "rows",
                                    .kind = TableKind::Sparse,
                                    .type = ValueType::Float64,
                                    .elems = kElems,
                                    .consistency = consistency,
                                    .rule = rule,
                                    .init_scale = 0.5}},
                                  40));
  std::vector<std::vector<double>> plain(kRows, std::vector<double>(kElems));
  std::vector<std::vector<double>> state(kRows, std::vector<double>(rule->state().elems(kElems)));
  const auto key_of = [](uint64_t row) { return row * 0x9E3779B97F4A7C15; };
  for (uint64_t row = 0; row < kRows; ++row)
    for (uint64_t i = 0; i < kElems; ++i) plain[row][i] = 0.5 * first_value(5, 0, key_of(row), i);
  const Table table = worker->table("rows");
  sim::Random random(3);
  worker->train([&](TrainingStep& step) {
    std::vector<uint64_t> chosen, named;
    for (uint64_t i = 0; i < kKeys; ++i) chosen.push_back(random.below(kRows));
    for (const uint64_t row : chosen) named.push_back(key_of(row));
    const Keys keys(named);
    ASSERT_TRUE(keys.has_repeats());
    std::vector<double> pulled(kKeys * kElems), sums(kKeys * kElems);
    table.pull(step, keys, pulled).wait();
    std::map<uint64_t, std::vector<double>> gradients;
    for (uint64_t i = 0; i < kKeys; ++i) {
      auto& gradient = gradients.try_emplace(chosen[i], kElems).first->second;
      for (uint64_t k = 0; k < kElems; ++k) {
        const double value = pulled[i * kElems + k];
        ASSERT_NEAR(value, plain[chosen[i]][k], 1e-12);
        sums[i * kElems + k] = value * 0.3 + first_value(7, step.batch(), i, k);
        gradient[k] += plain[chosen[i]][k] * 0.3 + first_value(7, step.batch(), i, k);
      }
    }
    step.weight = kKeys;
    table.push(step, keys, sums);
    for (auto& [row, gradient] : gradients)
      rule->apply(Row<double>{plain[row], state[row]}, gradient, {.divisor = kKeys});
  });
}

TEST(SparseTable, WithRepeatedKeysEqualsAPlainLoop) {
  for (const auto consistency : {Consistency::Lockstep, Consistency::Free}) {
    expect_a_plain_loop(make_sgd({.lr = 0.1}), consistency);
    expect_a_plain_loop(make_adagrad({.lr = 0.1}), consistency);
    expect_a_plain_loop(make_rowwise_adagrad({.lr = 0.1}), consistency);
    // A plain loop that decays and ages only the rows that the step names, as rule.h says.
    expect_a_plain_loop(make_adamw({.lr = 0.01}), consistency);
  }
}

/// Much more is pushed than the server may hold; what is pushed again and again stays.
TEST(SparseTable, RowsThatNobodyTouchesGo) {
  constexpr uint64_t kElems = 16, kMost = 50, kFresh = 40;
  JobConfig job = job_of({{.name = "rows",
                           .kind = TableKind::Sparse,
                           .elems = kElems,
                           .consistency = Consistency::Free,
                           .rule = make_sgd({.lr = -1}),
                           .most_rows = kMost}},
                         60);
  job.ranges = 2;
  job.server_bytes = 1 << 16;  // 512 rows of 64 bytes and their slabs; 2400 are named
  const auto worker = join(job);
  const Table table = worker->table("rows");
  const auto pull = [&](const TrainingStep& step, uint64_t key) {
    std::vector<float> row(kElems);
    table.pull(step, std::vector<uint64_t>{key}, row).wait();
    return row[0];
  };
  const TrainingStep& end = worker->train([&](TrainingStep& step) {
    std::vector<uint64_t> keys{0};
    for (uint64_t i = 0; i < kFresh; ++i) keys.push_back(1 + step.batch() * kFresh + i);
    table.push(step, keys, std::vector<float>(keys.size() * kElems, 1));
  });
  EXPECT_EQ(pull(end, 0), 60) << "named in every batch";
  EXPECT_EQ(pull(end, 1), 0) << "long gone, and as it was born";
  EXPECT_EQ(pull(end, 60 * kFresh), 1) << "the newest";
}

TEST(Join, AJobEndsWithASnapshotFromWhichTheNextOneGoesOn) {
  const test::Scratch folder;
  JobConfig job = job_of({dense("w", 9, Consistency::Lockstep),
                          {.name = "rows",
                           .kind = TableKind::Sparse,
                           .elems = 2,
                           .consistency = Consistency::Free,
                           .rule = make_adagrad({.lr = 0.1}),
                           .init_scale = 1}},
                         12);
  const auto trained = [&](const JobConfig& of, const std::string& snapshots) {
    const auto worker = join(of, {.snapshots = snapshots});
    const Table w = worker->table("w"), rows = worker->table("rows");
    const TrainingStep& end = worker->train([&](TrainingStep& step) {
      w.push(step, std::vector<double>(9, static_cast<double>(step.batch())));
      rows.push(step, std::vector<uint64_t>{step.batch() % 5}, std::vector<float>{1, -1});
    });
    std::vector<double> sums(9);
    std::vector<float> values(10);
    w.pull(end, sums).wait();
    rows.pull(end, std::vector<uint64_t>{0, 1, 2, 3, 4}, values).wait();
    sums.insert(sums.end(), values.begin(), values.end());
    return sums;
  };
  (void)trained(job, folder / "snapshots");
  job.data.epochs = 2;
  const auto whole = trained(job, "");
  job.data.begin = 12;
  job.start_from = folder / "snapshots/" + format::step_name(12);
  EXPECT_EQ(trained(job, ""), whole);
  job.data.snapshot_steps = 3;
  EXPECT_EQ(sentence_of([&] { (void)join(job); }),
            "job 'tables' wants snapshots, but has no folder for them: set JoinOptions::snapshots");
}

/// Welcomes a worker into one life after the other, and has the first task for it.
class GivesLives final : public Node {
 public:
  GivesLives(const JobConfig& job, Environment& environment) : Node(kManager, job, environment) {
    view_.version = 1;
    view_.ranges.resize(job.ranges);
  }
  void tick() override {}
  void end_life() { send_to({Role::Worker, 0}, LifeEnded{given_}); }
  Life heard() const { return heard_; }

 private:
  void handle(Message& message) override {
    const NodeId from = message.header.from;
    if (const auto* hello = std::get_if<Hello>(&message.body))
      send_to(from, Welcome{hello->nonce, ++given_, view_});
    if (std::holds_alternative<Heartbeat>(message.body)) heard_ = message.header.life;
    if (const auto* asks = std::get_if<TaskRequest>(&message.body))
      send_to(from, TaskReply{.life = given_, .number = asks->number, .answer = Answer::Work});
  }

  Life given_ = 0, heard_ = 0;
};

/// Nothing of it was under way when its life ended, and by the time that it pushes it lives again.
/// A push in the name of the new life would be refused for ever: nobody gave that life any work.
TEST(Client, KnowsAfterwardsThatItsLifeEndedWhileItComputed) {
  const test::Scratch folder;
  JobConfig job = job_of({{.name = "rows",
                           .kind = TableKind::Sparse,
                           .elems = 1,
                           .consistency = Consistency::Free,
                           .rule = make_sgd({})}},
                         4);
  job.timing.heartbeat = std::chrono::milliseconds(10);
  const NodeOptions options{
      .connections = {.job = job.name, .secret = net::Secret::random(), .lanes = job.lanes},
      .place = manager_in_folder(folder / "")};
  NodeOptions listening = options;
  listening.connections.listen = net::Address{"127.0.0.1", 0};
  NodeThread manager(listening);
  GivesLives* gives = nullptr;
  manager.start([&](Environment& environment) {
    auto made = std::make_unique<GivesLives>(job, environment);
    gives = made.get();
    return made;
  });
  options.place->announce(manager.endpoint());

  Client client(options, job, 0);
  const Client::Operation of_no_rows{.table = 0, .pull = true};  // no server is needed for it
  ASSERT_TRUE(client.next().has_value());
  EXPECT_NO_THROW((void)client.wait(client.start(of_no_rows)));
  manager.call([&](Node&) { gives->end_life(); });
  manager.wait([&] { return gives->heard() == 2; });
  EXPECT_THROW((void)client.wait(client.start(of_no_rows)), LifeLost);
  EXPECT_THROW((void)client.wait(client.start(of_no_rows)), LifeLost) << "until it asks for work";
  ASSERT_TRUE(client.next().has_value());
  EXPECT_NO_THROW((void)client.wait(client.start(of_no_rows)));
}

/// What a pull brought that nobody waited for is not in the array.
TEST(Table, ChangesThatNobodyTookComeAgain) {
  const JobConfig job =
      job_of({dense("w", 20, Consistency::Free), dense("other", 20, Consistency::Free)}, 20);
  const auto worker = join(job);
  const Table weights = worker->table("w"), other = worker->table("other");
  std::vector<double> kept(20);
  double pushed = 0;
  worker->train([&](TrainingStep& step) {
    weights.pull_changes(step, kept).wait();
    EXPECT_EQ(kept, std::vector<double>(20, pushed));
    weights.push(step, std::vector<double>(20, 1)).wait();
    ++pushed;
    (void)weights.pull_changes(step, kept);
    other.push(step, std::vector<double>(20, 1)).wait();  // servers answer what came first, first
  });
}

/// Each range counts by itself; those of another number of ranges are put together out of them.
TEST(Join, RowsGoInTheirOrderAlsoInAnotherNumberOfRanges) {
  const test::Scratch folder;
  constexpr uint64_t kRows = 24;
  JobConfig job = job_of({{.name = "rows",
                           .kind = TableKind::Sparse,
                           .elems = 1,
                           .consistency = Consistency::Free,
                           .rule = make_sgd({.lr = -1}),
                           .most_rows = kRows}},
                         kRows);
  job.servers = 1;
  job.ranges = 3;
  const auto train = [](const JobConfig& of, const std::string& snapshots) {
    auto worker = join(of, {.snapshots = snapshots});
    const Table rows = worker->table("rows");
    const TrainingStep& end = worker->train([&](TrainingStep& step) {
      rows.push(step, std::vector<uint64_t>{step.batch()}, std::vector<float>{1}).wait();
    });
    std::vector<uint64_t> keys(2 * kRows);
    std::iota(keys.begin(), keys.end(), uint64_t{0});
    std::vector<float> values(keys.size());
    rows.pull(end, keys, values).wait();
    return values;
  };
  (void)train(job, folder / "snapshots");
  job.data.epochs = 2;
  job.data.begin = kRows;
  job.ranges = 1;
  job.start_from = folder / "snapshots/" + format::step_name(kRows);
  const auto values = train(job, "");
  for (uint64_t key = 0; key < 2 * kRows; ++key)
    EXPECT_EQ(values[key], key < kRows ? 0 : 1)
        << key << ": those of before go, all, and only they";
}

}  // namespace
}  // namespace trireme::ps
