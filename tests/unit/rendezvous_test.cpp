// Where init() finds its rank and the others, for everybody who may have started it.
#include "trireme/mesh/rendezvous.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <map>
#include <memory>
#include <vector>

#include "support/net_support.h"
#include "trireme/core/error.h"

namespace trireme::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = Rendezvous::Kind;

/// An environment in which nothing but the given variables says anything about ranks.
class Started {
 public:
  explicit Started(const std::map<std::string, std::string>& variables) {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK",
          "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID", "SLURM_NTASKS",
          "TRIREME_JOB", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
      const auto value = variables.find(name);
      scoped_.push_back(std::make_unique<net::testing::ScopedEnv>(
          name, value == variables.end() ? nullptr : value->second.c_str()));
    }
  }

 private:
  std::vector<std::unique_ptr<net::testing::ScopedEnv>> scoped_;
};

std::string refusal(std::string_view url) {
  return sentence_of<ConfigError>([&] { find_rendezvous(url); });
}

TEST(Rendezvous, WithoutAnyVariableIsAWorldOfOne) {
  const Started started({});
  for (const char* url : {"", "env://"}) {
    const Rendezvous found = find_rendezvous(url);
    EXPECT_EQ(found.kind, Kind::Alone);
    EXPECT_EQ(found.rank, 0);
    EXPECT_EQ(found.size, 1);
  }
}

TEST(Rendezvous, ReadsWhatTriremeRunAndTorchrunSet) {
  const Started started({{"RANK", "3"},
                         {"WORLD_SIZE", "8"},
                         {"MASTER_ADDR", "10.1.2.3"},
                         {"MASTER_PORT", "4321"},
                         {"TORCHELASTIC_RUN_ID", "run-7"}});
  const Rendezvous found = find_rendezvous("env://");
  EXPECT_EQ(found.kind, Kind::Tcp);
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.size, 8);
  EXPECT_EQ(found.address.host, "10.1.2.3");
  EXPECT_EQ(found.address.port, 4321);
  EXPECT_EQ(found.job, "run-7");
}

TEST(Rendezvous, OfARestartedGroupIsAnotherJob) {
  const auto job = [](const char* count) {
    const Started started({{"RANK", "0"},
                           {"WORLD_SIZE", "2"},
                           {"TRIREME_JOB", "j"},
                           {"TORCHELASTIC_RUN_ID", "other"},
                           {"TORCHELASTIC_RESTART_COUNT", count}});
    return find_rendezvous("").job;
  };
  EXPECT_EQ(job("0"), "j");
  EXPECT_NE(job("1"), job("0"));
  EXPECT_NE(job("2"), job("1"));
}

TEST(Rendezvous, ReadsOpenMpiPmiAndSlurm) {
  const std::pair<const char*, const char*> starters[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"SLURM_PROCID", "SLURM_NTASKS"}};
  for (const auto& [rank, size] : starters) {
    SCOPED_TRACE(rank);
    const Started started({{rank, "5"}, {size, "6"}});
    const Rendezvous found = find_rendezvous("");
    EXPECT_EQ(found.kind, Kind::Tcp);
    EXPECT_EQ(found.rank, 5);
    EXPECT_EQ(found.size, 6);
    EXPECT_EQ(found.address.host, "127.0.0.1");
    EXPECT_GT(found.address.port, 1023);
  }
}

TEST(Rendezvous, PrefersRankToWhatTheJobManagerSaysAroundIt) {
  const Started started(
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}});
  EXPECT_EQ(find_rendezvous("").rank, 1);
  EXPECT_EQ(find_rendezvous("").size, 2);
}

TEST(Rendezvous, ReadsTcpAndFileAddresses) {
  const Started started({});
  const Rendezvous tcp = find_rendezvous("tcp://10.0.0.1:29511?rank=1&size=4");
  EXPECT_EQ(tcp.kind, Kind::Tcp);
  EXPECT_EQ(tcp.address.host, "10.0.0.1");
  EXPECT_EQ(tcp.address.port, 29511);
  EXPECT_EQ(tcp.rank, 1);
  EXPECT_EQ(tcp.size, 4);
  const Rendezvous file = find_rendezvous("file:///tmp/some where/x?size=3&rank=2&job=mine");
  EXPECT_EQ(file.kind, Kind::File);
  EXPECT_EQ(file.path, "/tmp/some where/x");
  EXPECT_EQ(file.rank, 2);
  EXPECT_EQ(file.job, "mine");
  EXPECT_EQ(find_rendezvous("file:///tmp/x?rank=0&size=1").kind, Kind::Alone);
}

TEST(Rendezvous, ByUrlDoesNotCareForABrokenEnvironment) {
  const Started started({{"RANK", "7"}, {"WORLD_SIZE", "2"}});  // some other launcher's, and wrong
  const Rendezvous found = find_rendezvous("tcp://127.0.0.1:2000?rank=1&size=4");
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.size, 4);
}

TEST(Rendezvous, RefusesVariablesThatCannotBeRight) {
  const auto refused = [](const std::map<std::string, std::string>& variables) {
    const Started started(variables);
    return refusal("env://");
  };
  EXPECT_THAT(refused({{"RANK", "1"}}),
              AllOf(HasSubstr("RANK is 1"), HasSubstr("WORLD_SIZE is not set")));
  EXPECT_THAT(refused({{"RANK", "8"}, {"WORLD_SIZE", "8"}}),
              AllOf(HasSubstr("rank 8 in a world of 8"), HasSubstr("0 to 7")));
  EXPECT_THAT(refused({{"RANK", "-1"}, {"WORLD_SIZE", "8"}}), HasSubstr("rank -1"));
  EXPECT_THAT(refused({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), HasSubstr("world of 0"));
  EXPECT_THAT(refused({{"RANK", "one"}, {"WORLD_SIZE", "2"}}),
              AllOf(HasSubstr("RANK"), HasSubstr("one")));
  EXPECT_THAT(refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}),
              HasSubstr("70000"));
  EXPECT_THAT(refused({{"SLURM_PROCID", "0"}}), HasSubstr("SLURM_NTASKS"));
  EXPECT_THAT(refused({{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}), HasSubstr("99999999999"));
}

TEST(Rendezvous, RefusesAddressesThatCannotBeRight) {
  const Started started({});
  EXPECT_THAT(refusal("http://a:1?rank=0&size=2"),
              AllOf(HasSubstr("http://a:1"), HasSubstr("tcp://")));
  EXPECT_THAT(refusal("nonsense"), HasSubstr("'nonsense'"));
  EXPECT_THAT(refusal("tcp://127.0.0.1:2000"),
              AllOf(HasSubstr("=NUMBER"), HasSubstr("?rank=0&size=4")));
  EXPECT_THAT(refusal("tcp://127.0.0.1:2000?rank=0"), HasSubstr("size=NUMBER"));
  EXPECT_THAT(refusal("tcp://127.0.0.1:2000?rank=x&size=2"), HasSubstr("rank=NUMBER"));
  EXPECT_THAT(refusal("tcp://127.0.0.1:2000?rank=2&size=2"), HasSubstr("rank 2 in a world of 2"));
  EXPECT_THAT(refusal("tcp://127.0.0.1:2000?rank=0&size=2&color=red"), HasSubstr("'color=red'"));
  EXPECT_THAT(refusal("file://relative/path?rank=0&size=2"), HasSubstr("absolute"));
  EXPECT_THAT(refusal("file://?rank=0&size=2"), HasSubstr("absolute"));
  EXPECT_THAT(refusal("tcp://127.0.0.1?rank=0&size=2"), HasSubstr("127.0.0.1"));
  EXPECT_THAT(refusal("tcp://127.0.0.1:99999?rank=0&size=2"), HasSubstr("99999"));
}

}  // namespace
}  // namespace trireme::test
