// One rank's side of a world, and the parts it is made of: the page of the host, the monitor and
// its links, streams over sockets, segments. Without a launcher, without torch.
#include "trireme/comm/world.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <thread>

#include "support/net_support.h"
#include "support/no_streams.h"
#include "trireme/comm/group_backend.h"
#include "trireme/comm/monitor.h"
#include "trireme/comm/process_world.h"
#include "trireme/comm/shared/futex_sleeper.h"
#include "trireme/comm/shared/peer_memory_access.h"
#include "trireme/comm/shared/world_memory.h"
#include "trireme/comm/shm/shm_segments.h"
#include "trireme/comm/tcp/tcp_streams.h"
#include "trireme/core/error.h"

namespace trireme::comm {
namespace {

using net::testing::in;
using net::testing::soon;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::sentence_of;
using ::testing::HasSubstr;

/// Memory for the page of a host: zeroed, and aligned as shared memory is.
std::shared_ptr<HostPage> make_page(int ranks) {
  const std::size_t bytes = HostPage::bytes(ranks);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return {static_cast<HostPage*>(memory), [bytes](HostPage* page) { ::munmap(page, bytes); }};
}

TEST(HostPage, KeepsTheFirstCauseWhoeverDiesWhileWritingItsOwn) {
  const auto page = make_page(3);
  // Rank 1 was killed in the middle of writing: it took its place, and never came to point to it.
  page->seats[1].cause_taken = 1;
  EXPECT_FALSE(page->failed());
  EXPECT_TRUE(page->claim(2, {CauseKind::Died, 1, "rank 1 died"}));
  EXPECT_FALSE(page->claim(0, {CauseKind::Timeout, 2, "too late"}));
  EXPECT_EQ(page->cause().text, "rank 1 died");
  EXPECT_EQ(page->cause().kind, CauseKind::Died);
}

TEST(HostPage, HasFailedWhenAClaimReturnsWhicheverThreadOfARankWasFirst) {
  for (int round = 0; round < 50; ++round) {
    const auto page = make_page(1);
    std::atomic<int> first = 0, unseen = 0;
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
          first += page->claim(0, {CauseKind::Aborted, 0, "one of four"});
          unseen += !page->failed();
        });
      }
    }
    EXPECT_EQ(first, 1);
    EXPECT_EQ(unseen, 0);
  }
}

class NoSleeper final : public Sleeper {
 public:
  void prepare(const WakeCondition&) override {}
  void sleep(std::chrono::nanoseconds) override {}
  void cancel() override {}
  void wake() override {}
};

/// What a world on that page needs at least.
Transport make_transport(const std::shared_ptr<HostPage>& page, const char* kind) {
  Transport transport;
  transport.kind = kind;
  transport.memory = page;
  transport.page = page.get();
  transport.streams = std::make_unique<NoStreams>();
  transport.sleeper = std::make_unique<NoSleeper>();
  return transport;
}

/// Rank 0 of a world of two hosts; the test is the other one, at the far end of the link.
class LinkedWorld {
 public:
  explicit LinkedWorld(net::Socket link) : page_(make_page(2)) {
    Transport transport = make_transport(page_, "tcp");
    transport.monitor = std::make_unique<Monitor>(std::chrono::hours(1));
    transport.monitor->expect({0, 0});
    transport.monitor->link(1, std::move(link));
    world_ = std::make_unique<World>(0, std::vector<Member>{{"here", 1, 0}, {"there", 2, 1}},
                                     std::move(transport), WorldOptions{});
  }
  World& operator*() { return *world_; }
  World* operator->() { return world_.get(); }
  void leave() { world_.reset(); }

 private:
  std::shared_ptr<HostPage> page_;
  std::unique_ptr<World> world_;
};

/// Two ranks of one host that are threads: a page, and no monitor.
std::unique_ptr<World> local_world(const std::shared_ptr<HostPage>& page, int rank) {
  return std::make_unique<World>(rank, std::vector<Member>{{"here", 1, 0}, {"here", 1, 0}},
                                 make_transport(page, "local"), WorldOptions{});
}

class EndlessTask final : public Task {
 public:
  EndlessTask(World& world, Lane& its_lane) {
    engine = &world.engine();
    lane = &its_lane;
  }
  Step step() override { return Step::Stuck; }
  std::vector<int> missing() const override { return {1}; }
};

TEST(PeerMemoryAccess, KeepsARankThatFailsFromGoingOnUntilItsMemoryIsReleased) {
  const auto page = make_page(2);
  const auto failing = local_world(page, 0), peer = local_world(page, 1);
  Lane lane(11, "pair", {0, 1}, 0);
  const auto task = std::make_shared<EndlessTask>(*failing, lane);
  failing->engine().start(task, Engine::Helper::Rest);
  std::optional<PeerMemoryAccess> access(*peer);
  ASSERT_TRUE(*access);
  std::atomic<bool> thrown = false;
  std::jthread waiter([&] {
    EXPECT_THROW(task->wait(seconds(20)), CommError);
    thrown = true;
  });
  failing->abort("enough");
  std::this_thread::sleep_for(milliseconds(200));  // the scene: it has long seen the failure
  EXPECT_FALSE(thrown) << "its caller may free the memory that rank 1 is working in";
  EXPECT_FALSE(task->done());
  access.emplace(*peer);
  EXPECT_FALSE(*access) << "nobody begins anew in a world that has failed";
  access.reset();
  waiter.join();
  EXPECT_TRUE(thrown);
}

/// The bytes of a link's message, as the other host's monitor writes them.
struct News {
  uint32_t kind = 0;  ///< 0: a sign of life, 1: left, 2: failed
  int32_t rank = -1;
  uint32_t cause = 0;
  char text[500] = {};
};

TEST(MonitorLink, UnderstandsNewsThatComeInPieces) {
  auto [ours, theirs] = net::testing::tcp_pair();
  LinkedWorld world(std::move(ours));
  News failed{2, 1, static_cast<uint32_t>(CauseKind::Aborted), "a reason from afar"};
  const News beat{};
  theirs.send_all(&beat, 300, soon());
  std::this_thread::sleep_for(milliseconds(700));  // the scene: a host that stalls in mid-sentence
  EXPECT_FALSE(world->failed()) << world->page().cause().text;
  theirs.send_all(reinterpret_cast<const char*>(&beat) + 300, sizeof beat - 300, soon());
  theirs.send_all(&failed, sizeof failed, soon());
  const auto limit = soon();
  while (!world->failed() && net::Clock::now() < limit)
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(world->page().cause().text, "a reason from afar");
}

TEST(MonitorLink, LosesNoNewsWhenTheOtherHostDoesNotReadForAWhile) {
  auto [ours, theirs] = net::testing::tcp_pair();
  const int small = 1;  // the kernel makes of it the least that it has
  ::setsockopt(ours.fd(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  ::setsockopt(theirs.fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  LinkedWorld world(std::move(ours));
  std::this_thread::sleep_for(milliseconds(1200));  // the scene: signs of life fill the socket
  world->abort("the reason that must not be lost");
  std::this_thread::sleep_for(milliseconds(500));
  bool told = false;
  int whole = 0;
  News news;
  std::jthread leaves([&] { world.leave(); });
  try {
    for (;; ++whole) {
      theirs.recv_all(&news, sizeof news, soon());
      ASSERT_LE(news.kind, 2u) << "message " << whole << " begins in the middle of another";
      told |=
          news.kind == 2 && std::string(news.text).find("must not be lost") != std::string::npos;
    }
  } catch (const CommError&) {  // it has left
  }
  EXPECT_TRUE(told);
  EXPECT_GT(whole, 1);
}

TEST(TcpStreams, DeliverWhatWasWrittenThoughThePeerStillSpeaks) {
  auto [left, right] = net::testing::tcp_pair();
  const auto streams_of = [](int rank, net::Socket socket) {
    std::vector<net::Socket> sockets(2);
    sockets[static_cast<std::size_t>(1 - rank)] = std::move(socket);
    return std::make_unique<TcpStreams>(std::move(sockets));
  };
  auto leaving = streams_of(0, std::move(left));
  auto staying = streams_of(1, std::move(right));
  std::vector<char> data(64 << 20, 'x'), question(512, '?');
  const iovec part{data.data(), data.size()};
  const int64_t written = leaving->write_some(1, &part, 1);
  ASSERT_GT(written, 1 << 20) << "more than the other end's kernel takes at once";
  std::jthread leaves([&] {
    leaving->deliver(seconds(10));
    leaving.reset();
  });
  std::this_thread::sleep_for(milliseconds(50));  // the scene: it would be gone by now
  const iovec asked{question.data(), question.size()};
  staying->write_some(0, &asked, 1);
  std::this_thread::sleep_for(milliseconds(50));
  int64_t got = 0;
  std::vector<char> into(1 << 20);
  try {
    for (const auto limit = soon(); got < written && net::Clock::now() < limit;)
      got += staying->read_some(0, into.data(), static_cast<int64_t>(into.size()));
  } catch (const StreamClosed&) {
  }
  EXPECT_EQ(got, written) << "a reset threw the rest away";
}

TEST(TcpStreams, OfManyRanksSeeTheEndThatComesTogetherWithTheLastBytes) {
  constexpr int kMany = 10;  // few are simply tried, each time
  std::vector<net::Socket> ours(1), theirs(1);
  for (int rank = 1; rank < kMany; ++rank) {
    auto [left, right] = net::testing::tcp_pair();
    ours.push_back(std::move(left));
    theirs.push_back(std::move(right));
  }
  TcpStreams streams(std::move(ours));
  std::vector<std::string> heard(kMany);
  int ends = 0;
  const auto read_all = [&] {
    streams.look();
    for (int rank = 1; rank < kMany; ++rank) {
      char byte = 0;
      try {
        while (streams.readable(rank) && streams.read_some(rank, &byte, 1) == 1)
          heard[static_cast<std::size_t>(rank)] += byte;
      } catch (const StreamClosed& closed) {
        EXPECT_EQ(closed.rank, rank);
        ++ends;
      }
    }
  };
  read_all();  // nothing has come yet
  for (std::size_t rank = 1; rank < kMany; ++rank) {
    theirs[rank].send_all("farewell", 8, soon());
    if (rank % 3 == 0) read_all();  // the others' words and ends come at once
    theirs[rank] = net::Socket();
  }
  for (const auto limit = in(seconds(5)); ends < kMany - 1 && net::Clock::now() < limit;)
    read_all();
  for (int rank = 1; rank < kMany; ++rank) {
    EXPECT_EQ(heard[static_cast<std::size_t>(rank)], "farewell") << rank;
    EXPECT_TRUE(streams.ended(rank)) << rank;
  }
}

/// Memory of two ranks that are threads. Rank 0 has a part in it only when rank 1 knows of it.
class SlowSegments final : public Segments {
 public:
  SlowSegments(int rank, std::atomic<bool>& known) : rank_(rank), known_(known) {}

  Location locate(const void*, int64_t, const std::vector<int>&) const override { return {}; }
  std::byte* at(Location) const override { return nullptr; }
  Mapping make(uint64_t, std::size_t bytes, const std::vector<int>&) override {
    for (const auto limit = in(seconds(3)); rank_ == 0 && !known_ && net::Clock::now() < limit;)
      std::this_thread::yield();
    EXPECT_TRUE(rank_ == 1 || known_) << "rank 1 waits for rank 0 before it knows its own memory";
    const std::shared_ptr<std::byte[]> memory(new std::byte[bytes]);
    return {memory.get(), bytes, memory};
  }
  void add(uint64_t, const Mapping&, const std::vector<int>&) override {
    if (rank_ == 1) known_ = true;
  }
  void remove(uint64_t) override {}

 private:
  const int rank_;
  std::atomic<bool>& known_;
};

TEST(Segments, AreKnownToARankBeforeOthersHearThatItHasThem) {
  // The first to hear it may use the memory at once, and rank 1 would not know what it speaks of.
  const std::size_t bytes = WorldMemory::bytes(2);
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const Mapping mapping{static_cast<std::byte*>(base), bytes,
                        std::shared_ptr<void>(base, [=](void* p) { ::munmap(p, bytes); })};
  const WorldMemory memory(mapping, 2);
  const std::shared_ptr<HostPage> page(mapping.keep, memory.page);
  std::atomic<bool> known = false;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      Transport transport = make_transport(page, "local");
      transport.streams = std::make_unique<RingStreams>(memory.rings, rank, 2, seats_of(*page, 2));
      transport.sleeper = std::make_unique<FutexSleeper>(page->seats[rank]);
      transport.segments = std::make_shared<SlowSegments>(rank, known);
      GroupBackend group(
          std::make_shared<World>(rank, std::vector<Member>{{"here", 1, 0}, {"here", 1, 0}},
                                  std::move(transport), WorldOptions{.timeout = seconds(20)}),
          std::make_unique<Lane>(kWorldId, "world", std::vector<int>{0, 1}, rank), memory.group);
      uint64_t number = 0;
      EXPECT_NE(group.allocate(1000, at::kCPU, number), nullptr);
    });
  }
}

TEST(ShmSegments, RefuseMemoryOfAnotherSizeAndMemoryThatCouldShrink) {
  const net::Secret secret = net::Secret::random();
  const std::string name = "trireme-segments-test-" + std::to_string(::getpid());
  const auto me = [](const char* role, int rank) { return net::Identity{"job", role, rank, 2}; };
  SegmentServer server(net::listen_unix_abstract(name), secret, me("segments", 0));
  ShmSegments taker(nullptr, secret, me("rank", 1), {name, "nobody"});
  const auto put = [&](uint64_t id, std::size_t bytes, int seals) {
    net::Fd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    server.put(id, std::move(fd), 1);
  };
  constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  put(7, 8192, kAll);
  EXPECT_NE(taker.make_by(7, 8192, {0, 1}, soon()).base, nullptr);
  put(8, 4096, kAll);
  EXPECT_THAT(sentence_of<CommError>([&] {
                taker.make_by(8, 8192, {0, 1}, soon());
              }),
              HasSubstr("4096 bytes"));
  put(9, 8192, F_SEAL_GROW);
  EXPECT_THAT(sentence_of<CommError>([&] {
                taker.make_by(9, 8192, {0, 1}, soon());
              }),
              HasSubstr("seals"));
  server.put_problem(10, "no memory on rank 0");
  EXPECT_THAT(sentence_of<CommError>([&] {
                taker.make_by(10, 8192, {0, 1}, soon());
              }),
              HasSubstr("no memory on rank 0"));
}

TEST(ShmSegments, WaitForMemoryThatIsMadeLaterWithoutHoldingUpOthers) {
  const net::Secret secret = net::Secret::random();
  const std::string name = "trireme-segments-late-" + std::to_string(::getpid());
  const auto me = [](const char* role, int rank) { return net::Identity{"job", role, rank, 64}; };
  std::vector<std::string> sockets(64, name);
  auto owner = std::make_unique<ShmSegments>(
      std::make_unique<SegmentServer>(net::listen_unix_abstract(name), secret, me("segments", 0)),
      secret, me("rank", 0), sockets);
  std::atomic<int> early = 0;
  std::vector<std::jthread> ranks;
  for (int rank = 1; rank < 64; ++rank) {
    ranks.emplace_back([&, rank] {
      ShmSegments mine(nullptr, secret, me("rank", rank), sockets);
      const Mapping mapping = mine.make_by(5, 4096, {0, rank}, soon());
      early += mapping.base[0] == std::byte{0};
    });
  }
  std::this_thread::sleep_for(milliseconds(100));  // the scene: all of them ask before it exists
  std::vector<int> all(64);
  for (int rank = 0; rank < 64; ++rank) all[static_cast<std::size_t>(rank)] = rank;
  const Mapping made = owner->make_by(5, 4096, all, soon());
  ranks.clear();
  EXPECT_EQ(early, 63);
}

}  // namespace
}  // namespace trireme::comm
