#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/net_support.h"
#include "trireme/core/error.h"
#include "trireme/net/store.h"
#include "trireme/net/store_server.h"
#include "trireme/net/tcp_store.h"

namespace trireme::net::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Where a kind of store lives, and how a rank gets to it. One more kind joins with one more of
/// these in the list below.
class Home {
 public:
  virtual ~Home() = default;
  virtual std::unique_ptr<Store> open(int r) = 0;
};

class TcpHome : public Home {
 public:
  std::unique_ptr<Store> open(int r) override {
    return connect_store(server_.address(), secret_, rank(r), soon());
  }

 private:
  Secret secret_ = Secret::random();
  StoreServer server_{kLoopback, secret_, "job-a", kRanks};
};

class FileHome : public Home {
 public:
  std::unique_ptr<Store> open(int r) override {
    return open_file_store(folder_ / "store", rank(r), soon());
  }

 private:
  Scratch folder_;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Home>()> make_home;
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << kind.name;
}

class StoreTest : public ::testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Store> open(int r) { return home_->open(r); }

  /// Runs the body on so many threads, each a rank with a store of its own.
  void on_ranks(std::function<void(int, Store&)> body) {
    std::vector<std::future<void>> ranks;
    for (int r = 0; r < kRanks; ++r)
      ranks.push_back(std::async(std::launch::async, [&, r] { body(r, *open(r)); }));
    for (auto& each : ranks) each.get();
  }

  std::unique_ptr<Home> home_ = GetParam().make_home();
};

TEST_P(StoreTest, OneRankSeesWhatAnotherSets) {
  auto a = open(0), b = open(1);
  EXPECT_EQ(b->get("key", soon()), std::nullopt);
  a->set("key", "one", soon());
  EXPECT_EQ(b->get("key", soon()), "one");
  b->set("key", "two", soon());
  EXPECT_EQ(a->get("key", soon()), "two");
  EXPECT_EQ(a->wait("key", soon()), "two");
  EXPECT_EQ(open(2)->get("key", soon()), "two") << "one that comes late sees it too";
  EXPECT_EQ(a->get("other", soon()), std::nullopt);
}

TEST_P(StoreTest, KeepsAnyBytesUpToTheLimit) {
  auto a = open(0), b = open(1);
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  a->set(bytes, bytes, soon());
  EXPECT_EQ(b->get(bytes, soon()), bytes);
  a->set("", "under the empty key", soon());
  EXPECT_EQ(b->wait("", soon()), "under the empty key");
  a->set("empty", "", soon());
  EXPECT_EQ(b->get("empty", soon()), "");
  const std::string largest(kMaxValueBytes, 'v');
  a->set("large", largest, soon());
  EXPECT_TRUE(b->get("large", soon()) == largest);
  EXPECT_EQ(a->compare_and_set("large", largest, "small", soon()), "small");

  EXPECT_THAT(sentence_of<MisuseError>([&] { a->set("large", largest + "v", soon()); }),
              AllOf(HasSubstr("'large'"), HasSubstr("1048577")));
  sentence_of<MisuseError>([&] { a->get(std::string(kMaxKeyBytes + 1, 'k'), soon()); });
  EXPECT_EQ(b->get("large", soon()), "small");
}

TEST_P(StoreTest, EraseSaysWhetherThereWasSomething) {
  auto a = open(0), b = open(1);
  EXPECT_FALSE(a->erase("key", soon()));
  a->set("key", "value", soon());
  EXPECT_TRUE(b->erase("key", soon()));
  EXPECT_FALSE(a->erase("key", soon()));
  EXPECT_EQ(a->get("key", soon()), std::nullopt);
}

TEST_P(StoreTest, AddCountsFromNothing) {
  auto a = open(0), b = open(1);
  EXPECT_EQ(a->add("count", 3, soon()), 3);
  EXPECT_EQ(b->add("count", -5, soon()), -2);
  EXPECT_EQ(a->get("count", soon()), "-2");
  a->set("text", "many", soon());
  EXPECT_THAT(sentence_of<MisuseError>([&] { b->add("text", 1, soon()); }),
              AllOf(HasSubstr("'text'"), HasSubstr("'many'")));
  a->set("full", std::to_string(INT64_MAX), soon());
  sentence_of<MisuseError>([&] { a->add("full", 1, soon()); });
  EXPECT_EQ(b->get("full", soon()), std::to_string(INT64_MAX));
}

TEST_P(StoreTest, CompareAndSetTellsWhoWon) {
  auto a = open(0), b = open(1);
  EXPECT_EQ(a->compare_and_set("key", "expected", "a", soon()), "");
  EXPECT_EQ(a->get("key", soon()), std::nullopt);
  EXPECT_EQ(a->compare_and_set("key", "", "a", soon()), "a");
  EXPECT_EQ(b->compare_and_set("key", "", "b", soon()), "a");
  EXPECT_EQ(b->compare_and_set("key", "a", "b", soon()), "b");
  EXPECT_EQ(a->get("key", soon()), "b");
}

TEST_P(StoreTest, WaitEndsWhenTheKeyAppearsByAnyMeans) {
  auto setter = open(0);
  const std::function<void(const std::string&)> means[] = {
      [&](const std::string& key) { setter->set(key, "1", soon()); },
      [&](const std::string& key) { setter->add(key, 1, soon()); },
      [&](const std::string& key) { setter->compare_and_set(key, "", "1", soon()); },
  };
  for (int i = 0; i < 3; ++i) {
    const std::string key = "key" + std::to_string(i);
    std::vector<std::future<std::string>> waiting;
    for (int r = 1; r < 4; ++r)
      waiting.push_back(
          std::async(std::launch::async, [&, r] { return open(r)->wait(key, soon()); }));
    EXPECT_EQ(waiting[0].wait_for(milliseconds(10)), std::future_status::timeout);
    means[i](key);
    for (auto& each : waiting) EXPECT_EQ(each.get(), "1");
  }
}

TEST_P(StoreTest, AWaitThatTimesOutNamesTheKeyAndTheStoreGoesOn) {
  auto store = open(0);
  for (int i = 0; i < 3; ++i) {
    const auto start = Clock::now();
    EXPECT_THAT(sentence_of<TimeoutError>([&] { store->wait("never", in(milliseconds(15))); }),
                HasSubstr("'never'"));
    EXPECT_GE(Clock::now() - start, milliseconds(15));
    EXPECT_LT(Clock::now() - start, milliseconds(3000));
    store->set("key", std::to_string(i), soon());
    EXPECT_EQ(store->get("key", soon()), std::to_string(i));
  }
  // The answer to a wait that was given up must not be taken for the answer to another call.
  sentence_of<TimeoutError>([&] { store->wait("never", in(milliseconds(15))); });
  open(1)->set("never", "late", soon());
  EXPECT_EQ(store->get("key", soon()), "2");
}

TEST_P(StoreTest, OneThreadWaitsWhileAnotherWorksOnTheSameStore) {
  auto store = open(0);
  auto waiting = std::async(std::launch::async, [&] { return store->wait("key", soon()); });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(store->add("count", 1, soon()), i + 1);
  store->set("key", "value", soon());
  EXPECT_EQ(waiting.get(), "value");
}

TEST_P(StoreTest, ManyRanksAddWithoutLosingOne) {
  constexpr int kAdds = 50;
  std::atomic<int64_t> highest = 0;
  on_ranks([&](int, Store& store) {
    for (int i = 0; i < kAdds; ++i) {
      const int64_t sum = store.add("count", 1, soon());
      for (int64_t seen = highest; seen < sum && !highest.compare_exchange_weak(seen, sum);) {
      }
    }
  });
  EXPECT_EQ(open(0)->get("count", soon()), std::to_string(kRanks * kAdds));
  EXPECT_EQ(highest, kRanks * kAdds);
}

TEST_P(StoreTest, OneRankAloneWinsEachRace) {
  constexpr int kRaces = 20;
  std::array<std::atomic<int>, kRaces> winners{};
  on_ranks([&](int r, Store& store) {
    const std::string me = "rank " + std::to_string(r);
    for (int race = 0; race < kRaces; ++race) {
      const std::string key = "race" + std::to_string(race);
      const std::string winner = store.compare_and_set(key, "", me, soon());
      if (winner == me) ++winners[static_cast<size_t>(race)];
      EXPECT_EQ(store.get(key, soon()), winner);
    }
  });
  for (const auto& count : winners) EXPECT_EQ(count, 1);
}

TEST_P(StoreTest, RanksExchangeAddressesAndMeet) {
  on_ranks([&](int r, Store& store) {
    for (int round = 0; round < 3; ++round) {
      const auto key = [&](int of) {
        return "round" + std::to_string(round) + "/rank" + std::to_string(of);
      };
      store.set(key(r), "address of " + std::to_string(r), soon());
      for (int other = 0; other < kRanks; ++other)
        EXPECT_EQ(store.wait(key(other), soon()), "address of " + std::to_string(other));
      const std::string arrived = "arrived" + std::to_string(round);
      if (store.add(arrived, 1, soon()) == kRanks) store.set(arrived + "/all", "yes", soon());
      EXPECT_EQ(store.wait(arrived + "/all", soon()), "yes");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreTest,
                         ::testing::Values(Kind{"tcp", [] { return std::make_unique<TcpHome>(); }},
                                           Kind{"file",
                                                [] { return std::make_unique<FileHome>(); }}),
                         [](const auto& test) { return test.param.name; });

TEST(TcpStore, KnowsTheAddressByWhichItIsReached) {
  const Secret secret = Secret::random();
  StoreServer server(kLoopback, secret, "job-a", kRanks);
  const auto store = connect_store(server.address(), secret, rank(0), soon());
  EXPECT_EQ(store->local_address().host, "127.0.0.1");
  EXPECT_NE(store->local_address().port, server.address().port);
}

TEST(TcpStore, SaysThatTheServerIsGone) {
  const Secret secret = Secret::random();
  auto server = std::make_unique<StoreServer>(kLoopback, secret, "job-a", kRanks);
  const Address address = server->address();
  const auto store = connect_store(address, secret, rank(0), soon());
  auto waiting = std::async(std::launch::async, [&] {
    return sentence_of<CommError>([&] { store->wait("key", soon()); });
  });
  EXPECT_EQ(waiting.wait_for(milliseconds(10)), std::future_status::timeout);
  server.reset();
  EXPECT_THAT(waiting.get(), AllOf(HasSubstr("'key'"), HasSubstr(address.to_string())));
  EXPECT_THAT(sentence_of<TimeoutError>([&] { store->set("key", "value", in(milliseconds(30))); }),
              HasSubstr(address.to_string()));
}

TEST(FileStore, IsOfOneJobAndOneWorldSize) {
  const Scratch folder;
  const std::string path = folder / "store";
  open_file_store(path, rank(0), soon())->set("key", "value", soon());
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  Identity stale = rank(0);
  stale.job = "job-b";
  EXPECT_THAT(
      sentence_of<ConfigError>([&] { open_file_store(path, stale, soon()); }),
      AllOf(HasSubstr(path), HasSubstr("'job-a'"), HasSubstr("'job-b'"), HasSubstr("remove")));
  Identity smaller = rank(0);
  smaller.size = 4;
  EXPECT_THAT(sentence_of<ConfigError>([&] { open_file_store(path, smaller, soon()); }),
              AllOf(HasSubstr("8"), HasSubstr("4")));
  EXPECT_THAT(sentence_of<ConfigError>([&] { open_file_store(path, rank(9), soon()); }),
              HasSubstr("rank 9 in a world of 8"));
}

TEST(FileStore, RefusesWhatIsNoStore) {
  const Scratch folder;
  const std::string path = folder / "store";
  std::ofstream(path) << "my precious notes";
  ::chmod(path.c_str(), 0600);
  EXPECT_THAT(sentence_of<ConfigError>([&] { open_file_store(path, rank(0), soon()); }),
              AllOf(HasSubstr(path), HasSubstr("my precious")));
  ::chmod(path.c_str(), 0644);
  EXPECT_THAT(sentence_of<ConfigError>([&] { open_file_store(path, rank(0), soon()); }),
              HasSubstr("0644"));
  sentence_of<ConfigError>([&] { open_file_store(folder / "no/such/folder", rank(0), soon()); });
  sentence_of<ConfigError>([&] { open_file_store(folder / "", rank(0), soon()); });
}

TEST(FileStore, FindsATornOrDamagedFile) {
  const Scratch folder;
  const std::string path = folder / "store";
  auto store = open_file_store(path, rank(0), soon());
  store->set("key", "value", soon());
  const auto whole = std::filesystem::file_size(path);
  store->set("other", "a value that is cut in the middle", soon());

  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 5);
  EXPECT_THAT(sentence_of<CommError>([&] { open_file_store(path, rank(1), soon()); }),
              AllOf(HasSubstr("damaged at byte " + std::to_string(whole)), HasSubstr("remove")));
  sentence_of<CommError>([&] { store->get("key", soon()); });

  std::filesystem::resize_file(path, whole);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(-1, std::ios::end)
      << 'X';
  EXPECT_THAT(sentence_of<CommError>([&] { open_file_store(path, rank(1), soon()); }),
              HasSubstr("damaged"));
  std::filesystem::remove(path);
  EXPECT_THAT(sentence_of<CommError>([&] { store->set("key", "value", soon()); }),
              HasSubstr("removed"));
}

}  // namespace
}  // namespace trireme::net::testing
