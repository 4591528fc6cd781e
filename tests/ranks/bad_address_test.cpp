// Papers that a rank can see to be wrong by itself, before it meets anybody.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "support/leftovers.h"
#include "support/net_support.h"
#include "trireme/core/error.h"
#include "trireme/mesh/init.h"

namespace trireme {
namespace {

using namespace std::chrono_literals;
using net::testing::ScopedEnv;
using net::testing::Scratch;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// The one sentence that init() refuses with.
std::string refusal(const std::string& url = "") {
  const auto began = std::chrono::steady_clock::now();
  const std::string said = net::testing::sentence_of<Error>([&] { init(url); });
  EXPECT_LT(std::chrono::steady_clock::now() - began, 5s) << said;
  EXPECT_THAT(said, Not(HasSubstr("\n")));
  return said;
}

using Variables = std::vector<std::pair<const char*, const char*>>;

std::string refusal_with(const Variables& variables) {
  std::vector<std::unique_ptr<ScopedEnv>> set;
  for (const auto& [name, value] : variables)
    set.push_back(std::make_unique<ScopedEnv>(name, value));
  return refusal();
}

class BadAddress : public ::testing::Test {
 protected:
  void TearDown() override { left_.expect_none(); }
  ScopedEnv patience_{"TRIREME_TIMEOUT_S", "2"};
  ScopedEnv secret_{"TRIREME_SECRET", "a secret for this test"};
  test::Leftovers left_;
};

TEST_F(BadAddress, Rank9Of8IsRefused) {
  for (const char* url : {"tcp://127.0.0.1:1?rank=9&size=8", "file:///tmp/no?rank=9&size=8"})
    EXPECT_THAT(refusal(url),
                AllOf(HasSubstr("rank 9"), HasSubstr("world of 8"), HasSubstr("0 to 7")));
  EXPECT_THAT(refusal_with({{"RANK", "9"}, {"WORLD_SIZE", "8"}}),
              AllOf(HasSubstr("rank 9"), HasSubstr("world of 8")));
  EXPECT_THAT(refusal_with({{"RANK", "-1"}, {"WORLD_SIZE", "8"}}), HasSubstr("rank -1"));
  EXPECT_THAT(refusal("tcp://127.0.0.1:1?rank=0&size=0"), HasSubstr("0 ranks"));
}

TEST_F(BadAddress, AUrlThatIsNoneIsShown) {
  const std::pair<const char*, const char*> cases[] = {
      {"ftp://127.0.0.1:1?rank=0&size=2", "ftp://"},
      {"127.0.0.1:1", "127.0.0.1:1"},
      {"tcp://127.0.0.1?rank=0&size=2", "127.0.0.1"},
      {"tcp://127.0.0.1:99999?rank=0&size=2", "99999"},
      {"tcp://127.0.0.1:12?rank=0", "size"},
      {"tcp://127.0.0.1:12?rank=a&size=2", "rank"},
      {"tcp://127.0.0.1:12?rank=0&size=2&color=red", "color=red"},
      {"file://here?rank=0&size=2", "absolute"},
      {"tcp://127.0.0.1:12?rank=99999999999999999999&size=2", "rank"},
      {"tcp://127.0.0.1:12?rank=4294967296&size=4294967297", "4294967297"},
  };
  for (const auto& [url, word] : cases) EXPECT_THAT(refusal(url), HasSubstr(word)) << url;
}

TEST_F(BadAddress, AVariableThatMakesNoSenseIsNamed) {
  const std::pair<const char*, Variables> cases[] = {
      {"WORLD_SIZE", {{"RANK", "0"}, {"WORLD_SIZE", nullptr}}},
      {"RANK", {{"RANK", "first"}, {"WORLD_SIZE", "2"}}},
      {"MASTER_PORT", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}},
      {"MASTER_PORT", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "http"}}},
      {"TRIREME_TIMEOUT_S", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TRIREME_TIMEOUT_S", "soon"}}},
      {"TRIREME_TIMEOUT_S", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TRIREME_TIMEOUT_S", "-5"}}},
      {"TRIREME_HEARTBEAT_S", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TRIREME_HEARTBEAT_S", "0"}}},
      {"TRIREME_HEARTBEAT_S", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TRIREME_HEARTBEAT_S", "-1"}}},
      {"TRIREME_HEARTBEAT_S",
       {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TRIREME_HEARTBEAT_S", "soon"}}},
      {"TRIREME_RATE_MBIT", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TRIREME_RATE_MBIT", "-1"}}},
      {"TRIREME_RATE_MBIT", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TRIREME_RATE_MBIT", "fast"}}},
      {"TRIREME_SECRET", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TRIREME_SECRET", "short"}}},
      {"nonsense", {{"TRIREME_INIT", "nonsense"}}},
      {"TRIREME_BACKEND",
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "9"}, {"TRIREME_BACKEND", "pigeon"}}},
  };
  for (const auto& [name, variables] : cases) EXPECT_THAT(refusal_with(variables), HasSubstr(name));
}

TEST_F(BadAddress, AMasterThatCannotBeFoundIsNamed) {
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(refusal_with({{"RANK", rank},
                              {"WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "no-such-host.invalid"},
                              {"MASTER_PORT", "29511"}}),
                HasSubstr("no-such-host.invalid"));
  }
  // Somebody else's address: this rank 0 cannot be the master.
  EXPECT_THAT(refusal("tcp://192.0.2.1:29511?rank=0&size=2"), HasSubstr("192.0.2.1"));
  // A machine that does not answer.
  EXPECT_THAT(refusal("tcp://127.0.0.1:9?rank=1&size=2"), HasSubstr("127.0.0.1:9"));
}

TEST_F(BadAddress, AFileThatCannotBeUsedIsNamed) {
  const Scratch folder;
  const std::string text = folder / "text", open_to_all = folder / "open", link = folder / "link";
  std::ofstream(text) << "dear diary";
  std::filesystem::permissions(
      text, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::ofstream(open_to_all) << "";
  std::filesystem::create_symlink(text, link);
  for (const std::string& path : {std::string("/no/such/folder/meet"), std::string("/proc/meet"),
                                  std::string("/tmp"), text, open_to_all, link})
    EXPECT_THAT(refusal("file://" + path + "?rank=0&size=2"), HasSubstr(path));
  std::string diary;
  std::getline(std::ifstream(text), diary);
  EXPECT_EQ(diary, "dear diary");
}

}  // namespace
}  // namespace trireme
