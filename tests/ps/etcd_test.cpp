// The manager's log, lease and address in a real etcd, which is killed, too.
#include <gmock/gmock.h>

#include <future>
#include <thread>

#include "tests/ps/etcd_server.h"
#include "tests/ps/ps_processes.h"
#include "trireme/ps/manager_place.h"

namespace trireme::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

class Etcd : public ::testing::Test {
 protected:
  /// One etcd for all tests: each begins with no key in it.
  void SetUp() override {
    if (!EtcdServer::available()) GTEST_SKIP() << "no libcurl, or no etcd of version 3.4 or newer";
    if (!server) server = std::make_unique<EtcdServer>();
    server->client().commit({.key = "no key", .removals = {{"a", "z"}}});
  }
  static void TearDownTestSuite() { server.reset(); }

  std::unique_ptr<ps::ManagerPlace> place(std::chrono::seconds lease_time = 60s,
                                          const std::string& job = "job") {
    return ps::manager_in_etcd(server->place(), job, lease_time);
  }
  /// What a manager that comes now reads.
  std::string log_now() { return place()->open_log()->read(); }

  size_t num_entries() {
    return server->client().read({"trireme/job/log/", "trireme/job/log0"}, 1000).size();
  }

  /// As when the holder was cut off for too long.
  void end_lease(const std::string& job = "job") {
    auto client = server->client();
    client.revoke(client.read(fmt::format("trireme/{}/manager", job)).value().lease);
  }

  /// The same, when that many entries of a generation are there.
  std::jthread end_lease_at(int generation, int entries) {
    return std::jthread([=, this] {
      auto client = server->client();
      const auto key = fmt::format("trireme/job/log/{:016x}/{:016x}", generation, entries - 1);
      while (!client.read(key)) std::this_thread::yield();
      end_lease();
    });
  }

  inline static std::unique_ptr<EtcdServer> server;
};

constexpr int64_t kLong = 3 << 19;  ///< bytes that take two requests, and answers

TEST_F(Etcd, TheLogOutlastsManagersAndEtcd) {
  std::string all;
  for (unsigned life = 0; life < 3; ++life) {
    const auto log = place()->open_log();
    EXPECT_EQ(log->read(), all);
    for (unsigned record = 0; record < 5; ++record) {
      const std::string bytes =
          random_bytes(record == 3 && life == 0 ? kLong : 50 + record, record + life);
      log->append(bytes);
      log->append("");
      log->sync();
      all += bytes;
    }
    log->append("never synced");
    if (life == 1) {
      server->kill();
      server->start();
    }
  }
  EXPECT_EQ(log_now(), all);
}

TEST_F(Etcd, AManagerOutlastsARestartOfEtcd) {
  const auto log = place()->open_log();
  log->append("before");
  log->sync();
  server->kill();
  log->append(" and after");
  const auto synced = std::async(std::launch::async, [&] { log->sync(); });
  EXPECT_EQ(synced.wait_for(100ms), std::future_status::timeout);
  server->start();
  synced.wait();
  EXPECT_EQ(log->read(), "before and after");
  log->check_held();
}

TEST_F(Etcd, WithoutEtcdAManagerEndsWithItsLease) {
  const auto log = place(1s)->open_log();
  log->append("before");
  log->sync();
  server->kill();
  log->append("never there");
  EXPECT_THAT([&] { log->sync(); },
              ThrowsMessage<CommError>(AllOf(StartsWith("no etcd answers kv/txn at 127.0.0.1:"),
                                             HasSubstr("lease has run out"))));
  EXPECT_THROW(log->check_held(), CommError);
  server->start();  // which does not bring the lease back to life
  EXPECT_THROW(log->check_held(), CommError);
  EXPECT_EQ(log_now(), "before");
}

TEST_F(Etcd, ASyncThatFailsLeavesABeginning) {
  const auto log = place()->open_log();
  std::string all;
  const auto ender = end_lease_at(0, 150);
  const auto write_on = [&] {
    for (unsigned i = 0;; ++i) {
      const std::string bytes = random_bytes(kLong, i);
      all += bytes;
      log->append(bytes);
      log->sync();
    }
  };
  EXPECT_THROW(write_on(), CommError);
  const std::string left = log_now();
  EXPECT_GE(left.size(), 150u << 14);
  EXPECT_TRUE(all.starts_with(left));
}

TEST_F(Etcd, AReplacementTakesThePlaceOfTheLog) {
  const auto log = place()->open_log();
  log->append("one");
  log->sync();
  log->append("is in the replacement");
  log->replace("two");
  log->append(" and three");
  log->sync();
  EXPECT_EQ(log->read(), "two and three");
  log->replace(random_bytes(kLong));
  EXPECT_EQ(log->read(), random_bytes(kLong));
  log->replace("");
  EXPECT_EQ(log->read(), "");
  log->append("four");
  log->sync();
  EXPECT_EQ(log->read(), "four");
  EXPECT_EQ(num_entries(), 1u);
}

TEST_F(Etcd, AReplacementThatFailsLeavesTheOldOrTheNewLog) {
  const auto log = place()->open_log();
  const auto ender = end_lease_at(2, 80);
  unsigned tried = 0;
  const auto replace_on = [&] {
    while (true) log->replace(random_bytes(kLong, ++tried));
  };
  EXPECT_THROW(replace_on(), CommError);
  const std::string left = log_now();
  EXPECT_TRUE(left == random_bytes(kLong, tried) || left == random_bytes(kLong, tried - 1));
  EXPECT_EQ(num_entries(), static_cast<size_t>(kLong) >> 14);  // of others nothing stays
}

/// It waits for as long as a dead one's lease may last.
TEST_F(Etcd, AManagerThatCannotBeginSaysWhy) {
  const auto other_jobs = place(60s, "other")->open_log();
  const auto log = place()->open_log();
  const auto nobody = net::Listener({"127.0.0.1", 0}).address().to_string();
  auto elsewhere = std::async(
      std::launch::async, [&] { ps::manager_in_etcd("etcd://" + nobody, "job", 1s)->open_log(); });
  EXPECT_THAT([&] { place(1s)->open_log(); },
              ThrowsMessage<CommError>(AllOf(HasSubstr("another manager of this job is running"),
                                             HasSubstr(fmt::format("pid {}", ::getpid())))));
  log->check_held();
  EXPECT_THAT([&] { elsewhere.get(); },
              ThrowsMessage<CommError>(StartsWith("no etcd answers lease/grant at " + nobody)));
}

TEST_F(Etcd, AManagerThatEndsGivesItsLeaseBack) {
  for (int life = 0; life < 2; ++life) place()->open_log();
}

TEST_F(Etcd, AManagerThatHasLostItsLeaseWritesNothing) {
  const auto here = place(3s), there = place();  // asks for its lease every second
  const auto old_log = here->open_log();
  old_log->append("old");
  old_log->sync();
  here->announce({.tcp = "127.0.0.1:1"});
  end_lease();
  const auto log = there->open_log();
  there->announce({.tcp = "127.0.0.1:2"});
  const auto is_lost = ThrowsMessage<CommError>(HasSubstr("lease on trireme/job/manager"));
  old_log->append(", and a decision too late");
  EXPECT_THAT([&] { old_log->sync(); }, is_lost);
  EXPECT_THAT([&] { old_log->replace("all too late"); }, is_lost);
  EXPECT_THAT([&] { here->announce({.tcp = "127.0.0.1:1"}); }, is_lost);
  EXPECT_TRUE(eventually([&] {  // it hears of it without writing, too
    try {
      old_log->check_held();
      return false;
    } catch (const CommError&) {
      return true;
    }
  }));
  log->append(", new");
  log->sync();
  EXPECT_EQ(log->read(), "old, new");
  EXPECT_TRUE(eventually([&] { return there->find() == ps::Endpoint{.tcp = "127.0.0.1:2"}; }));
}

TEST_F(Etcd, NodesFindTheManager) {
  const auto manager = place(), node = place();
  EXPECT_EQ(node->find(), std::nullopt);
  auto log = manager->open_log();
  const ps::Endpoint first{.tcp = "127.0.0.1:1", .local = "here", .host = "a"};
  manager->announce(first);
  EXPECT_TRUE(eventually([&] { return node->find() == first; }));
  const ps::Endpoint second{.tcp = "127.0.0.1:2"};
  manager->announce(second);
  EXPECT_TRUE(eventually([&] { return node->find() == second; }));
  EXPECT_EQ(node->trouble(), "");
  server->kill();  // nobody knows better
  EXPECT_TRUE(eventually([&] { return node->find() == second && !node->trouble().empty(); }));
  EXPECT_THAT(node->trouble(), StartsWith("no etcd answers kv/range at 127.0.0.1:"));
  server->start();
  EXPECT_TRUE(eventually([&] { return node->find() == second && node->trouble().empty(); }));
  log.reset();
  EXPECT_TRUE(eventually([&] { return node->find() == std::nullopt; }));
}

TEST_F(Etcd, NamesOfJobsAndPrefixesDoNotMix) {
  const auto a = place()->open_log(), inside = place(60s, "job/log")->open_log();
  const auto elsewhere = ps::make_manager_place(server->place() + "/my/cluster/", "job");
  const auto far = elsewhere->open_log();
  a->append("a");
  inside->append("inside");
  far->append("far");
  for (const auto* log : {&a, &inside, &far}) (*log)->sync();
  a->replace("b");
  EXPECT_EQ(inside->read(), "inside");
  EXPECT_EQ(far->read(), "far");
  EXPECT_TRUE(server->client().read("my/cluster/job/manager"));
}

TEST_F(Etcd, NothingStaysOfAJobThatIsOver) {
  const auto over = place(), other = place(60s, "job2"), inside = place(60s, "job/2");
  const auto log = over->open_log(), other_log = other->open_log(), inside_log = inside->open_log();
  for (const auto* one : {&log, &other_log, &inside_log}) {
    (*one)->append(random_bytes(kLong));
    (*one)->sync();
  }
  log->replace("short");
  over->announce({.tcp = "127.0.0.1:1"});
  over->forget();
  EXPECT_TRUE(server->client().read({"trireme/job/", "trireme/job0"}, 10).empty());
  EXPECT_EQ(other_log->read(), random_bytes(kLong));
  EXPECT_EQ(inside_log->read(), random_bytes(kLong));
}

TEST_F(Etcd, AsksTheNextHostIfOneDoesNotAnswer) {
  const auto nobody = net::Listener({"127.0.0.1", 0}).address();
  const auto two = ps::make_manager_place(
      fmt::format("etcd://{},{}", nobody.to_string(), server->address().to_string()), "job");
  const auto log = two->open_log();
  log->append("there");
  log->sync();
  EXPECT_EQ(log->read(), "there");
}

TEST(EtcdAddress, IsRefusedWithTheRemedy) {
  for (const char* where :
       {"etcd://", "etcd://host", "etcd://host:port", "etcd://a:1,", "etcd:///b"})
    EXPECT_THAT([&] { ps::make_manager_place(where, "job"); },
                ThrowsMessage<ConfigError>(AllOf(HasSubstr(fmt::format("'{}'", where)),
                                                 HasSubstr("etcd://host:port[,host:port...]"))));
  EXPECT_THAT([&] { ps::make_manager_place("etcd://me:secret@host:1", "job"); },
              ThrowsMessage<ConfigError>(::testing::Not(HasSubstr("secret"))));
  EXPECT_THAT([&] { ps::make_manager_place("zookeeper://host:1", "job"); },
              ThrowsMessage<ConfigError>(HasSubstr("a folder, or etcd://host:port")));
}

/// Another program may listen on the port.
TEST(EtcdAddress, OfSomethingElseIsAnError) {
  if (!ps::Http::available()) GTEST_SKIP() << "no libcurl";
  net::Listener listener({"127.0.0.1", 0});
  const std::string page = "HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"hello\": [[1]]}";
  const std::jthread other([&] {
    const auto until = net::Clock::now() + 10s;
    auto socket = listener.accept(until);
    char request[1024];
    (void)socket.recv_some(request, sizeof request, until);
    socket.send_all(page.data(), page.size() - 1, until);
  });
  EXPECT_THAT([&] { ps::Etcd({listener.address()}).read("key"); },
              ThrowsMessage<CommError>(HasSubstr("it must be etcd 3.4 or newer")));
}

TEST_F(Etcd, AJobTrainsThroughDeathsOfManagerAndEtcd) {
  const PsJob job{.servers = 2, .workers = 2, .copies = 1, .batches = 200};
  PsProcesses processes(server->place(), job);
  ASSERT_TRUE(processes.worker(0).wait_for("step "));
  server->kill();
  server->start();
  processes.kill_and_restart("manager", 0);
  end_lease(ps_job(job).name);  // it would take seconds
  expect_plain_weights(processes, job);
}

}  // namespace
}  // namespace trireme::test
