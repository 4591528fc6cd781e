#include "support/failing_world.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iostream>
#include <map>
#include <regex>
#include <sstream>
#include <thread>

#include "support/command.h"
#include "support/through_gpu.h"
#include "trireme/core/error.h"
#include "trireme/mesh/init.h"
#include "trireme/net/secret.h"
#include "trireme/net/socket.h"

namespace trireme::test {

namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr const char* kTimesFile = "TRIREME_TEST_TIMES";
constexpr auto kAtOnce =
    std::chrono::milliseconds(500);  // what follows a failure; really microseconds

/// For the whole run: a secret, so that nobody's key is touched, and a file of measured times.
class OneRun : public ::testing::Environment {
  void SetUp() override {
    if (::getenv("TRIREME_TEST_RANK") != nullptr) return;
    ::setenv("TRIREME_SECRET", net::Secret::random().to_text().c_str(), 1);
    file_ = fs::temp_directory_path() / ("trireme-times-" + unique_marker());
    ::setenv(kTimesFile, file_.c_str(), 1);
  }
  void TearDown() override {
    if (file_.empty() || !fs::exists(file_)) return;
    std::map<std::string, std::vector<double>> times;
    std::ifstream stream(file_);
    double ms = 0;
    for (std::string heading; stream >> ms && std::getline(stream, heading);)
      times[heading].push_back(ms);
    for (auto& [heading, list] : times) {
      std::sort(list.begin(), list.end());
      std::cout << "[  TIMES   ]" << heading << ": median " << list[list.size() / 2] << " ms, most "
                << list.back() << " ms, of " << list.size() << "\n";
    }
    fs::remove(file_);
  }
  fs::path file_;
};
[[maybe_unused]] ::testing::Environment* const kOneRun =
    ::testing::AddGlobalTestEnvironment(new OneRun);

std::string own_name(int rank) {
  char host[256] = "?";
  ::gethostname(host, sizeof host - 1);
  return "rank " + std::to_string(rank) + " (host " + host + ", pid " + std::to_string(::getpid()) +
         ")";
}

}  // namespace

comm::Communicator join(const Rank& self, const std::string& backend, const std::string& name) {
  ::setenv("TRIREME_BACKEND", backend.c_str(), 1);
  const auto world =
      init("file://" + (self.scratch / name).string() + "?rank=" + std::to_string(self.rank) +
           "&size=" + std::to_string(self.size));
  return backend == "nccl" ? through_gpu(world) : world;
}

std::vector<std::string> failing_backends() {
  std::vector<std::string> backends = {"shm", "tcp"};
  if (nccl_available()) backends.emplace_back("nccl");
  return backends;
}

void expect_it_works(const comm::Communicator& world) {
  const auto data = torch::full({3000}, world.rank() + 1.0);
  world.all_reduce(data).wait();
  EXPECT_EQ(data[2999].item<float>(), world.size() * (world.size() + 1) / 2.0);
}

std::vector<std::string> doings() {
  return {"all_reduce_1KB",  "all_reduce_16MB", "all_reduce_16MB_registered",
          "all_reduce_ring", "broadcast",       "reduce",
          "all_gather",      "reduce_scatter",  "all_to_all",
          "gather",          "scatter",         "barrier",
          "send_recv"};
}

Doing make_doing(const std::string& name, const comm::Communicator& world) {
  constexpr int64_t kElems = 1 << 18, kLargeElems = 4 << 20;
  const int size = world.size(), rank = world.rank(), last = size - 1;
  const std::string said = name.substr(0, name.find("_1")).substr(0, name.find("_ring"));
  const auto part = torch::full({kElems}, rank + 1.0),
             whole = torch::full({kElems * size}, rank + 1.0);
  using World = const comm::Communicator&;
  if (name == "all_reduce_1KB")
    return {name, said, [x = torch::ones({256})](World w) { w.all_reduce(x).wait(); }};
  if (name == "all_reduce_16MB")
    return {name, said, [x = torch::ones({kLargeElems})](World w) { w.all_reduce(x).wait(); }};
  if (name == "all_reduce_16MB_registered")
    return {name, said, [x = world.allocate({kLargeElems})](World w) { w.all_reduce(x).wait(); }};
  if (name == "all_reduce_ring")
    return {name, said, [=](World w) {
              w.all_reduce(part, comm::ReduceOp::Sum, comm::Algorithm::Ring).wait();
            }};
  if (name == "broadcast") return {name, said, [=](World w) { w.broadcast(part, last).wait(); }};
  if (name == "reduce") return {name, said, [=](World w) { w.reduce(part, 0).wait(); }};
  if (name == "all_gather") return {name, said, [=](World w) { w.all_gather(whole, part).wait(); }};
  if (name == "reduce_scatter")
    return {name, said, [=](World w) { w.reduce_scatter(part, whole).wait(); }};
  if (name == "all_to_all") {
    const auto out = torch::zeros_like(whole);
    return {name, said, [=](World w) { w.all_to_all(out, whole).wait(); }};
  }
  if (name == "gather") return {name, said, [=](World w) { w.gather(whole, part, 0).wait(); }};
  if (name == "scatter") return {name, said, [=](World w) { w.scatter(part, whole, last).wait(); }};
  if (name == "barrier") return {name, said, [](World w) { w.barrier(); }};
  if (name == "send_recv") {
    const auto in = torch::zeros_like(part);
    return {name, "(send|recv)", [=](World w) {
              auto received = w.recv(in, (rank + last) % size);
              auto sent = w.send(part, (rank + 1) % size);
              sent.wait();
              received.wait();
            }};
  }
  throw std::invalid_argument("no such doing: " + name);
}

void leave_word(const Rank& self, const std::string& name, const std::string& text) {
  const fs::path file = self.scratch / name,
                 beside = file.string() + "." + std::to_string(self.rank);
  std::ofstream(beside) << text;
  fs::rename(beside, file);
}

std::string read_word(const Rank& self, const std::string& name) {
  const fs::path file = self.scratch / name;
  if (!eventually([&] { return fs::exists(file); }, kLongest))
    throw std::runtime_error(name + " never came");
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

void meet(const Rank& self, const std::string& name, const std::vector<int>& who) {
  leave_word(self, name + std::to_string(self.rank), "here");
  for (const int rank : who) read_word(self, name + std::to_string(rank));
}

void raise_on_record(const Rank& self, int signal) {
  const std::string file = (self.scratch / ("fall" + std::to_string(self.rank))).string();
  const std::string beside = file + ".new";  // who reads it finds it whole
  const std::string name = own_name(self.rank);
  const int fd = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  const std::string text = std::to_string(Clock::now().time_since_epoch().count()) + " " + name;
  if (::write(fd, text.data(), text.size()) < 0) ::perror("write");
  if (::rename(beside.c_str(), file.c_str()) != 0) ::perror("rename");
  ::kill(::getpid(), signal);  // the process, not this thread
}

std::chrono::steady_clock::time_point time_of_fall(const Rank& self, int rank) {
  return Clock::time_point(
      Clock::duration(std::stoll(read_word(self, "fall" + std::to_string(rank)))));
}

std::string name_of_fallen(const Rank& self, int rank) {
  const std::string text = read_word(self, "fall" + std::to_string(rank));
  return text.substr(text.find(' ') + 1);
}

void wait_until_dead(const Rank& self, int rank) {
  const std::string name = name_of_fallen(self, rank);
  const pid_t pid = std::stoi(name.substr(name.find("pid ") + 4));
  const net::Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return;
  if (net::wait_ready(process.get(), POLLIN, Clock::now() + kLongest) ==
      net::Readiness::DeadlinePassed)
    throw std::runtime_error(name + " lives");
}

void fall_while(const Rank& self, int signal, const Doing& doing, const comm::Communicator& world,
                int rounds, std::chrono::microseconds delay) {
  std::atomic<int> round{0};
  std::jthread fate([&] {
    while (round.load() < rounds) std::this_thread::yield();
    for (const auto end = Clock::now() + delay; Clock::now() < end;) std::this_thread::yield();
    raise_on_record(self, signal);
  });
  const auto end = Clock::now() + kLongest;
  while (Clock::now() < end) {
    doing.once(world);
    ++round;
  }
  ADD_FAILURE() << "the signal did not end this rank";
}

Report until_it_fails(const Rank& self, const std::function<void()>& doing) {
  const auto end = Clock::now() + kLongest;
  try {
    while (Clock::now() < end) doing();
  } catch (const CommError& error) {
    Report report{error.what(), "", Clock::now(),
                  dynamic_cast<const TimeoutError*>(&error) != nullptr};
    const std::string before = ", rank " + std::to_string(self.rank) + ": ";
    const auto at = report.text.find(before);
    if (at != report.text.npos) report.cause = report.text.substr(at + before.size());
    return report;
  }
  throw std::runtime_error("nothing failed");
}

void expect_good_report(const Rank& self, const comm::Communicator& world, const Report& report,
                        const std::string& said, const std::vector<int>& survivors) {
  // "all_reduce [256] float32 #12 on 'world', rank 0: ..."
  const std::regex form("^" + said + "\\b.* #[0-9]+ on 'world', rank " + std::to_string(self.rank) +
                        ": [^\n]+$");
  EXPECT_TRUE(std::regex_search(report.text, form)) << report.text;

  leave_word(self, "cause" + std::to_string(self.rank), report.cause);
  for (const int other : survivors)
    EXPECT_EQ(read_word(self, "cause" + std::to_string(other)), report.cause)
        << "says rank " << other;

  const int next = (self.rank + 1) % self.size;
  const auto data = torch::ones({static_cast<int64_t>(self.size) * 4});
  const std::vector<std::pair<const char*, std::function<void()>>> later = {
      {"all_reduce", [&] { world.all_reduce(data).wait(); }},
      {"barrier", [&] { world.barrier(); }},
      {"send", [&] { world.send(data, next).wait(); }},
      {"recv", [&] { world.recv(data, next).wait(); }},
      {"split", [&] { (void)world.split("part", 0, 0); }},
      {"allocate on shm", [&] {
         (void)world.allocate({16});
         if (std::string(::getenv("TRIREME_BACKEND")) == "tcp")
           world.barrier();  // plain memory there
       }}};
  for (const auto& [name, call] : later) {
    const auto began = Clock::now();
    const Report again = until_it_fails(self, call);
    EXPECT_EQ(again.cause, report.cause) << "later " << name;
    EXPECT_LT(Clock::now() - began, kAtOnce) << "later " << name;
  }
}

void record_ms(const std::string& heading, double ms) {
  const char* file = ::getenv(kTimesFile);
  if (file == nullptr) return;
  const std::string line = std::to_string(ms) + " " + heading + "\n";
  const int fd = ::open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (::write(fd, line.data(), line.size()) < 0) ::perror("write");
  ::close(fd);
}

double ms_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

}  // namespace trireme::test
