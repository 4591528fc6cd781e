#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/run_ranks.h"
#include "trireme/comm/communicator.h"

namespace trireme::test {

/// Every wait of these tests ends after this, so that a hang is a failure with a name.
constexpr auto kLongest = std::chrono::seconds(20);

/// Meets the other ranks through a file in the scratch folder. `name` tells several worlds apart.
comm::Communicator join(const Rank& self, const std::string& backend,
                        const std::string& name = "meet");

/// shm, tcp, and where there is a GPU, nccl with tensors on it.
std::vector<std::string> failing_backends();

/// Adds up something; the sum is right.
void expect_it_works(const comm::Communicator& world);

/// One kind of operation, as something to do again and again.
struct Doing {
  std::string name;  ///< of the case: "all_reduce_16MB_registered"
  std::string said;  ///< how the operation is called in messages
  std::function<void(const comm::Communicator&)> once;
};

/// All kinds of operations. Collective: some need memory from `allocate`.
std::vector<std::string> doings();
Doing make_doing(const std::string& name, const comm::Communicator& world);

// Ranks leave each other word through files of the scratch folder; a file is there whole or not.
void leave_word(const Rank& self, const std::string& name, const std::string& text);
std::string read_word(const Rank& self, const std::string& name);  ///< waits; throws at kLongest

/// Lets all ranks in `who` come here. For ranks that have no world (any more) to do it with.
void meet(const Rank& self, const std::string& name, const std::vector<int>& who);

/// Writes down now who we are and what time it is, then raises the signal.
void raise_on_record(const Rank& self, int signal);
/// When that rank did so.
std::chrono::steady_clock::time_point time_of_fall(const Rank& self, int rank);

/// After `rounds` of the doing, and a moment of `delay` (so that it is in the middle of one), the
/// signal comes from a thread of its own.
void fall_while(const Rank& self, int signal, const Doing& doing, const comm::Communicator& world,
                int rounds, std::chrono::microseconds delay);

/// What was thrown, and when.
struct Report {
  std::string text;
  std::string cause;  ///< what comes after "rank R: "
  std::chrono::steady_clock::time_point when;
  bool is_timeout = false;
};

/// Does it until it throws CommError. Fails the test if that takes longer than kLongest.
Report until_it_fails(const Rank& self, const std::function<void()>& doing);

/// Returns when that rank, which raised SIGKILL, holds nothing any more.
void wait_until_dead(const Rank& self, int rank);

/// "rank 1 (host b, pid 8812)", as that rank itself wrote it down before it fell.
std::string name_of_fallen(const Rank& self, int rank);

/// What every failure must be like: the operation, its number and the group are named, all of the
/// ranks in `survivors` report the same cause, and whatever comes later throws at once, too.
void expect_good_report(const Rank& self, const comm::Communicator& world, const Report& report,
                        const std::string& said, const std::vector<int>& survivors);

/// Keeps a time, in ms, under a heading; the medians are printed when all tests are over.
void record_ms(const std::string& heading, double ms);
double ms_between(std::chrono::steady_clock::time_point from,
                  std::chrono::steady_clock::time_point to);

}  // namespace trireme::test
