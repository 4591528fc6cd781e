#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "support/failing_world.h"
#include "support/leftovers.h"
#include "trireme/core/error.h"
#include "trireme/net/socket.h"

namespace trireme::test {

struct Refusal {
  std::string said;
  std::chrono::milliseconds after{0};
  bool is_timeout = false;
};

/// What comes of trying to join: one sentence of an error that a caller can act on.
inline Refusal refused(const std::function<void()>& joining) {
  const auto began = std::chrono::steady_clock::now();
  Refusal refusal;
  try {
    joining();
    ADD_FAILURE() << "nobody minded";
  } catch (const Error& error) {
    refusal.said = error.what();
    refusal.is_timeout = dynamic_cast<const TimeoutError*>(&error) != nullptr;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not an error of ours: " << error.what();
  }
  refusal.after = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - began);
  EXPECT_THAT(refusal.said, ::testing::Not(::testing::HasSubstr("\n")));
  EXPECT_LT(refusal.said.size(), 500u) << refusal.said;
  return refusal;
}

/// How ranks are told to meet: a free port of this machine, or a file.
class BadInit : public ::testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { left_.expect_none(); }

  struct Papers {
    int rank = 0, size = 1;
    std::string job = "today";
  };
  std::string url(const Rank& self, const Papers& papers) const {
    const std::string who = "?rank=" + std::to_string(papers.rank) +
                            "&size=" + std::to_string(papers.size) + "&job=" + papers.job;
    if (GetParam() == "file") return "file://" + (self.scratch / "meet").string() + who;
    return "tcp://127.0.0.1:" + port(self) + who;
  }
  /// The same for all ranks of one test; free when it was picked.
  static std::string port(const Rank& self) {
    if (self.rank == 0 && !std::filesystem::exists(self.scratch / "port")) pick_port(self);
    return read_word(self, "port");
  }
  static void pick_port(const Rank& self) {
    // Closed before the others hear of it: they would knock at this listener, not at the store.
    const uint16_t picked = net::Listener({"127.0.0.1", 0}).address().port;
    leave_word(self, "port", std::to_string(picked));
  }
  static void be_patient_for(const char* seconds) { ::setenv("TRIREME_TIMEOUT_S", seconds, 1); }

  const RunOptions how_{.deadline = kLongest * 2};
  Leftovers left_;
};

}  // namespace trireme::test
