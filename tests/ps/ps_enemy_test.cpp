// Real sockets of a running job, and those who mean no good: strangers, floods, peers that neither
// answer nor read, a folder that cannot be written.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "support/net_support.h"
#include "support/scratch.h"
#include "trireme/ps/client.h"
#include "trireme/ps/one_process_job.h"

namespace trireme::test {
namespace {

using namespace std::chrono_literals;
using net::testing::in;

ps::JobConfig free_job() {
  ps::JobConfig job{.name = "enemies", .servers = 1, .workers = 1};
  job.ranges = 2;
  job.data = {.epochs = 1, .batches_per_epoch = 4, .steps_per_task = 2};
  job.tables = {{.name = "w",
                 .elems = 8,
                 .consistency = ps::Consistency::Free,
                 .rule = ps::make_sgd({.lr = -1})}};
  return job;
}

void train(const ps::OneProcessJob& servers, const ps::JobConfig& job) {
  ps::Client client(servers.options(), job, 0);
  const std::vector<float> ones(8, 1);
  while (const auto work = client.next()) {
    for (size_t step = 0; step < work->batches.size(); ++step)
      (void)client.wait(client.start(
          {.clock = work->clock + step,
           .view_version = work->view_version,
           .push = true,
           .batch = work->batches[step],
           .values = std::string(reinterpret_cast<const char*>(ones.data()), 8 * sizeof(float))}));
    client.done(*work);
  }
  const auto read = client.wait(client.start({.pull = true}));
  float first = 0;
  std::memcpy(&first, read.values().data(), sizeof first);
  EXPECT_EQ(first, 4);
}

net::Identity as(const char* role) {
  return {.job = "enemies", .role = role, .rank = 0, .size = 1 << 20};
}

std::ptrdiff_t num_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST(PsEnemies, StrangersGetNothingAndDelayNobody) {
  const ps::JobConfig job = free_job();
  const ps::OneProcessJob servers(job);
  const net::Address manager = net::parse_address(servers.options().place->find()->tcp);
  EXPECT_THROW(net::connect_and_prove(manager, "ps-manager", net::Secret::random(), as("ps-worker"),
                                      in(10s)),
               CommError);
  EXPECT_THROW(net::connect_and_prove(manager, "ps-manager", servers.options().connections.secret,
                                      as("ps-burglar"), in(10s)),
               CommError);
  net::Identity elsewhere = as("ps-worker");
  elsewhere.job = "another job";
  EXPECT_THROW(net::connect_and_prove(manager, "ps-manager", servers.options().connections.secret,
                                      elsewhere, in(10s)),
               CommError);
  // A flood that says nothing.
  constexpr int kFlood = 300, kMostKept = 140;
  const auto before = num_descriptors();
  std::vector<net::Socket> flood;
  for (int i = 0; i < kFlood; ++i) flood.push_back(net::connect(manager, in(10s)));
  train(servers, job);
  EXPECT_LE(num_descriptors() - before, kFlood + kMostKept)
      << "the job keeps a descriptor for every stranger";
}

/// Sends far more than may wait, and counts what was taken.
int64_t bytes_taken(ps::Connections& from, ps::LaneId to) {
  constexpr size_t kBytes = size_t{64} << 20;
  const ps::Payload payload(std::string(kBytes, 'x'));
  ps::Frame frame;
  frame.add(payload);
  for (int i = 0; i < 100; ++i) from.send(to, frame);
  return from.sent_bytes();
}

constexpr int64_t kMostTaken = (int64_t{2} << 30) + (int64_t{128} << 20);
constexpr ps::LaneId kReader{{ps::Role::Worker, 0}, 0};

ps::Connections::Options options_of(ps::LaneId me) {
  return {.job = "enemies", .secret = net::Secret::from_text("a secret of tests only"), .me = me};
}

/// Its messages wait, up to a bound; more are dropped, as an Environment may.
TEST(PsEnemies, WhoDoesNotReadIsNotKeptForEver) {
  auto options = options_of({{ps::Role::Server, 0}, 0});
  options.listen = net::testing::kLoopback;
  ps::Connections server(std::move(options), [](const ps::Frame&) {});
  std::atomic<bool> came = false;
  net::ProvenConnection reader;
  std::jthread peer([&] {
    reader = net::connect_and_prove(net::parse_address(server.endpoint().tcp), "ps-server.0",
                                    net::Secret::from_text("a secret of tests only"),
                                    as("ps-worker"), in(20s));
    came = true;
  });
  for (const auto until = in(20s); !came && net::Clock::now() < until;) server.step(in(5ms));
  ASSERT_TRUE(came);
  server.step(in(50ms));
  const int64_t taken = bytes_taken(server, kReader);
  EXPECT_GT(taken, int64_t{1} << 30);
  EXPECT_LE(taken, kMostTaken);
}

/// It listens, and that is all: what waits for it is bounded, and given up in the end.
TEST(PsEnemies, WhoNeverAnswersACallIsNotCalledForEver) {
  const net::Listener deaf(net::testing::kLoopback);
  auto options = options_of({{ps::Role::Worker, 0}, 0});
  options.prove_within = 300ms;
  options.find = [&](ps::LaneId) {
    return std::optional(ps::Endpoint{.tcp = deaf.address().to_string()});
  };
  ps::Connections worker(std::move(options), [](const ps::Frame&) {});
  const int64_t taken = bytes_taken(worker, {{ps::Role::Server, 0}, 0});
  EXPECT_GT(taken, int64_t{1} << 30);
  EXPECT_LE(taken, kMostTaken);
  for (const auto until = in(600ms); net::Clock::now() < until;) worker.step(until);
  EXPECT_GT(bytes_taken(worker, {{ps::Role::Server, 0}, 0}), taken) << "it is dialled anew";
}

/// Snapshots cannot be written: the job goes on, and says so.
TEST(PsEnemies, AFolderThatCannotBeWrittenEndsNothing) {
  const Scratch scratch;
  std::ofstream(scratch / "file") << "no folder";
  ps::JobConfig job = free_job();
  job.timing.snapshot_every = 1ms;
  const auto files = std::make_shared<const ps::SnapshotFiles>(
      job, ps::SnapshotFiles::Options{.folder = scratch / "file/snapshots"});
  const ps::OneProcessJob servers(job, files);
  train(servers, job);
}

}  // namespace
}  // namespace trireme::test
