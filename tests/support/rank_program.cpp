// A rank of a job that goes wrong in one way, named by its first argument. What it sees of the
// others' failures it says on one line, "saw at T: ...", where T is the steady clock in ns.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "trireme/core/error.h"
#include "trireme/mesh/init.h"

namespace {

using trireme::comm::Communicator;
using Clock = std::chrono::steady_clock;

constexpr int kRoundsBefore = 20;  // things go well for a while
constexpr auto kLongest = std::chrono::seconds(60);

void say(const std::string& line) {
  std::cerr << line + "\n" << std::flush;
}

std::string now() {
  return std::to_string(Clock::now().time_since_epoch().count());
}

int reached(const Communicator& world, const torch::Tensor& data) {
  world.all_reduce(data).wait();
  return 1;
}

/// All-reduces until something fails; `at` is done after the first rounds.
int loop(
    const Communicator& world, const std::function<void()>& at = [] {}) {
  const auto data = torch::zeros({1 << 14});
  for (int round = 0; round < kRoundsBefore; ++round) reached(world, data);
  say("ready " + std::to_string(world.rank()) + " pid " + std::to_string(::getpid()));
  at();
  const auto end = Clock::now() + kLongest;
  try {
    while (Clock::now() < end) reached(world, data);
  } catch (const trireme::CommError& error) {
    say("saw at " + now() + ": " + error.what());
    return 1;
  }
  say("nothing failed");
  return 2;
}

/// What rank `number` does in the middle.
std::function<void()> only(const Communicator& world, const std::string& number,
                           std::function<void()> what) {
  return world.rank() == std::stoi(number) ? what : [] {};
}

int die(const Communicator& world, const std::string& who) {
  return loop(world, only(world, who, [] {
                say("dying at " + now());
                ::kill(::getpid(), SIGKILL);
              }));
}

int stop(const Communicator& world, const std::string& who) {
  return loop(world, only(world, who, [] {
                say("stopping at " + now());
                ::kill(::getpid(), SIGSTOP);
              }));
}

/// An error of its own, that takes the whole program down in good order.
int throw_up(const Communicator& world, const std::string& who) {
  return loop(world, only(world, who, [] { throw std::runtime_error("the data is not there"); }));
}

/// The end without a word: no destructor of the world runs.
int vanish(const Communicator& world, const std::string& who) {
  return loop(world, only(world, who, [] { ::_exit(1); }));
}

/// A child that would stay, and hold the output open.
int hold(const Communicator& world, const std::string&) {
  return loop(world, [] {
    if (std::system("sleep 60 & (sleep 61; :) &") != 0) say("no children");
  });
}

/// No memory for a segment on one rank: an error everywhere, and the world goes on.
int poor(const Communicator& world, const std::string& who) {
  only(world, who, [] {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit limit{pages * 4096 + (256 << 20), RLIM_INFINITY};
    ::setrlimit(RLIMIT_AS, &limit);
  })();
  try {
    (void)world.allocate({int64_t{1} << 30});
    say("there was memory");
  } catch (const trireme::CommError& error) {
    say(std::string("refused: ") + error.what());
  }
  const auto data = torch::ones({1000});
  world.all_reduce(data).wait();
  if (data[0].item<float>() == static_cast<float>(world.size())) say("goes on");
  return 0;
}

/// All is well for so many seconds, as rank 0 counts them.
int work(const Communicator& world, const std::string& seconds) {
  const auto end = Clock::now() + std::chrono::seconds(std::stoi(seconds));
  say("ready " + std::to_string(world.rank()) + " pid " + std::to_string(::getpid()));
  for (float over = 0; over == 0;) {
    const auto flag = torch::full({1}, world.rank() == 0 && Clock::now() > end ? 1.0 : 0.0);
    world.all_reduce(flag).wait();
    over = flag.item<float>();
  }
  say("went on");
  return 0;
}

/// Ranks of the second half leave one after the other, lowest first; the first half goes on alone.
int leave_in_order(const Communicator& whole, const std::string&) {
  const int half = whole.size() / 2, rank = whole.rank();
  const auto part = whole.split(rank < half ? "first" : "second", rank < half ? 0 : 1, rank);
  const auto data = torch::zeros({1 << 14});
  whole.barrier();
  const auto end =
      Clock::now() + std::chrono::milliseconds(rank < half ? 1500 : 300 * (rank - half));
  if (rank >= half) {
    while (Clock::now() < end) ::usleep(1000);
    return 0;
  }
  for (float over = 0; over == 0;) {
    const auto flag = torch::full({1}, Clock::now() > end ? 1.0 : 0.0);
    part.all_reduce(data).wait();
    part.all_reduce(flag).wait();
    over = flag.item<float>();
  }
  say("went on");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, int (*)(const Communicator&, const std::string&)> scenes = {
      {"loop", [](const Communicator& world, const std::string&) { return loop(world); }},
      {"die-at", die},
      {"stop-at", stop},
      {"throw-at", throw_up},
      {"vanish-at", vanish},
      {"hold", hold},
      {"poor", poor},
      {"work", work},
      {"leave-in-order", leave_in_order},
  };
  const auto scene = scenes.find(argc > 1 ? argv[1] : "");
  if (scene == scenes.end()) {
    say("usage: trireme_test_rank SCENE [RANK]");
    return 2;
  }
  try {
    return scene->second(trireme::init(), argc > 2 ? argv[2] : "0");
  } catch (const std::exception& error) {
    say(std::string("error: ") + error.what());
    return 1;
  }
}
