#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <set>
#include <thread>

#include "tests/support/net_support.h"
#include "trireme/core/error.h"
#include "trireme/net/handshake.h"
#include "trireme/net/secret.h"

namespace trireme::net::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Side = Handshake::Side;
using State = Handshake::State;

const Secret kSecret = Secret::from_text("a secret of enough bytes");
const Secret kOther = Secret::from_text("another secret of enough");

/// Lets both sides talk, a number of bytes at a time, until neither has more to say.
void converse(Handshake& client, Handshake& server, size_t bytes_at_a_time) {
  std::string to_server, to_client;
  const auto give = [&](Handshake& to, std::string& bytes) {
    while (!bytes.empty() && to.wanted() > 0) {
      const size_t count = std::min({bytes_at_a_time, bytes.size(), to.wanted()});
      to.feed(std::string_view(bytes).substr(0, count));
      bytes.erase(0, count);
    }
  };
  for (int round = 0; round < 8; ++round) {
    to_server += client.take_output();
    give(server, to_server);
    to_client += server.take_output();
    give(client, to_client);
  }
}

TEST(Handshake, BothSidesLearnWhoTheOtherIs) {
  for (const size_t step : {size_t{1}, size_t{7}, size_t{10'000}}) {
    Handshake client(Side::Client, kSecret, rank(3));
    Handshake server(Side::Server, kSecret, {.job = "job-a", .role = "store", .size = 8});
    converse(client, server, step);
    ASSERT_EQ(client.state(), State::Proven) << client.error();
    ASSERT_EQ(server.state(), State::Proven) << server.error();
    EXPECT_EQ(client.peer().role, "store");
    EXPECT_EQ(server.peer().role, "rank");
    EXPECT_EQ(server.peer().rank, 3);
    EXPECT_EQ(server.peer().size, 8);
    EXPECT_EQ(server.peer().job, "job-a");
  }
}

struct Refusal {
  Secret secret;
  Identity client;
  const char* client_hears;
};

TEST(Handshake, RefusesWithOneSentence) {
  const Refusal refusals[] = {
      {kOther, rank(3), "the secret or the job id"},
      {kSecret, rank(3, 8, "job-b"), "this is job 'job-a', you belong to job 'job-b'"},
      {kSecret, rank(9), "rank 9 in a world of 8"},
      {kSecret, rank(-1), "rank -1 in a world of 8"},
      {kSecret, rank(3, 4), "a world of 8 ranks, rank 3 was started for a world of 4"},
  };
  for (const Refusal& refusal : refusals) {
    Handshake client(Side::Client, refusal.secret, refusal.client);
    Handshake server(Side::Server, kSecret, rank(0));
    converse(client, server, 1000);
    EXPECT_EQ(server.state(), State::Failed);
    EXPECT_EQ(client.state(), State::Failed);
    EXPECT_THAT(client.error(), HasSubstr(refusal.client_hears));
    EXPECT_THAT(client.error() + server.error(), Not(HasSubstr("another secret of enough")));
  }
}

TEST(Handshake, TellsAStrangerNothingAboutTheJob) {
  Handshake client(Side::Client, kOther, rank(3, 8, "job-b"));
  Handshake server(Side::Server, kSecret, rank(0, 8, "a-private-name"));
  converse(client, server, 1000);
  EXPECT_THAT(client.error(), AllOf(HasSubstr("'job-b'"), Not(HasSubstr("a-private-name"))));
}

TEST(Handshake, AdmitMayRefuse) {
  const Admit admit = [](const Identity& who) {
    return who.rank == 3 ? std::string("rank 3 is here already") : std::string();
  };
  for (const int r : {2, 3}) {
    Handshake client(Side::Client, kSecret, rank(r));
    Handshake server(Side::Server, kSecret, rank(0), admit);
    converse(client, server, 1000);
    EXPECT_EQ(client.state(), r == 3 ? State::Failed : State::Proven);
    EXPECT_EQ(server.state(), r == 3 ? State::Failed : State::Proven);
    EXPECT_THAT(client.error(), r == 3 ? HasSubstr("rank 3 is here already") : HasSubstr(""));
  }
}

TEST(Handshake, NoProofIsGoodTwice) {
  Handshake client(Side::Client, kSecret, rank(3));
  Handshake server(Side::Server, kSecret, rank(0));
  const std::string hello = client.take_output();
  server.feed(hello);
  client.feed(server.take_output());
  const std::string proof = client.take_output();

  Handshake second(Side::Server, kSecret, rank(0));
  second.feed(hello);
  second.feed(proof.substr(0, 3));
  second.feed(proof.substr(3));
  EXPECT_EQ(second.state(), State::Failed) << "a recorded proof was taken";
  server.feed(proof.substr(0, 3));
  server.feed(proof.substr(3));
  EXPECT_EQ(server.state(), State::Proven) << "the same proof must be good where it belongs";
}

TEST(Handshake, EveryBitOfAProofCounts) {
  for (size_t byte = 3; byte < 90; ++byte) {
    Handshake client(Side::Client, kSecret, rank(3));
    Handshake server(Side::Server, kSecret, rank(0));
    server.feed(client.take_output());
    client.feed(server.take_output());
    std::string proof = client.take_output();
    if (byte >= proof.size()) break;
    proof[byte] = static_cast<char>(proof[byte] ^ 1);
    server.feed(proof.substr(0, 3));
    server.feed(proof.substr(3));
    EXPECT_EQ(server.state(), State::Failed) << "byte " << byte;
  }
}

TEST(Handshake, AServerThatDoesNotKnowTheSecretIsFoundOut) {
  // It says welcome to everybody, with our own proof as its own.
  Handshake client(Side::Client, kSecret, rank(3));
  Handshake impostor(Side::Client, kOther, rank(0));
  client.take_output();
  client.feed(impostor.take_output());
  const std::string proof = client.take_output();
  client.feed("W" + proof.substr(1, 2));
  client.feed(proof.substr(3));
  EXPECT_EQ(client.state(), State::Failed);
  EXPECT_THAT(client.error(), HasSubstr("cannot prove that it knows the secret"));
}

TEST(Handshake, SeesAStrangerByTheFirstWrongByte) {
  Handshake server(Side::Server, kSecret, rank(0));
  server.feed("GET");
  EXPECT_EQ(server.state(), State::Failed);
  EXPECT_THAT(server.error(), AllOf(HasSubstr("does not speak trireme"), HasSubstr("GET")));
  EXPECT_EQ(server.take_output(), "");

  Handshake newer(Side::Server, kSecret, rank(0));
  newer.feed("TRIREME\x02");
  EXPECT_THAT(newer.error(), AllOf(HasSubstr("version 2"), HasSubstr("version 1")));
  EXPECT_THAT(newer.take_output(), HasSubstr("TRIREME\x01")) << "so that it can say the same";
}

TEST(Handshake, BoundsWhatAPeerMayAnnounce) {
  Handshake client(Side::Client, kSecret, rank(3));
  Handshake server(Side::Server, kSecret, rank(0));
  server.feed(client.take_output());
  server.feed("P\xff\xff");
  EXPECT_EQ(server.state(), State::Failed);
  EXPECT_THAT(server.error(), HasSubstr("65535 bytes"));
  EXPECT_THROW(Handshake(Side::Client, kSecret, rank(0, 8, std::string(257, 'j').c_str())),
               MisuseError);
}

TEST(Handshake, OverSocketsNamesThePeerAndLeavesTheRestUnread) {
  auto [a, b] = tcp_pair();
  auto client = std::async(std::launch::async, [&, &end = a] {
    const Identity who = prove(end, Handshake(Side::Client, kSecret, rank(3)), soon());
    end.send_all("next", 4, soon());
    return who;
  });
  EXPECT_EQ(prove(b, Handshake(Side::Server, kSecret, rank(0)), soon()).rank, 3);
  EXPECT_EQ(client.get().rank, 0);
  char text[4];
  b.recv_all(text, 4, soon());
  EXPECT_EQ(std::string(text, 4), "next");

  auto [c, d] = tcp_pair();
  const std::string peer = c.peer().to_string();
  auto refused = std::async(std::launch::async, [&, &end = c] {
    return sentence_of<CommError>(
        [&] { prove(end, Handshake(Side::Client, kOther, rank(3)), soon()); });
  });
  sentence_of<CommError>(
      [&, &end = d] { prove(end, Handshake(Side::Server, kSecret, rank(0)), soon()); });
  EXPECT_THAT(refused.get(), AllOf(HasSubstr(peer), HasSubstr("TRIREME_SECRET")));
}

TEST(Handshake, WithASilentPeerEndsAtTheDeadline) {
  auto [a, b] = tcp_pair();
  EXPECT_THAT(sentence_of<TimeoutError>([&, &end = a] {
                prove(end, Handshake(Side::Client, kSecret, rank(3)),
                      in(std::chrono::milliseconds(20)));
              }),
              HasSubstr(a.peer().to_string()));
  b = Socket();
  EXPECT_THAT(sentence_of<CommError>(
                  [&, &end = a] { prove(end, Handshake(Side::Server, kSecret, rank(3)), soon()); }),
              Not(HasSubstr("deadline")));
}

TEST(Secret, HmacIsTheOneOfTheStandard) {
  // RFC 4231, test case 3: the first whose key is as long as a secret must be.
  const Digest digest =
      hmac_sha256(Secret::from_text(std::string(20, '\xaa')), std::string(50, '\xdd'));
  std::string hex;
  for (const uint8_t byte : digest) hex += fmt::format("{:02x}", byte);
  EXPECT_EQ(hex, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
}

TEST(Secret, IsLongAndNeverTheSame) {
  EXPECT_NE(Secret::random().to_text(), Secret::random().to_text());
  EXPECT_GE(Secret::random().to_text().size(), 32u);
  EXPECT_THAT(sentence_of<ConfigError>([] { Secret::from_text("too short"); }),
              AllOf(HasSubstr("16"), Not(HasSubstr("too short"))));
}

TEST(Secret, ComesFromTheEnvironmentThenAFileThenTheUsersKey) {
  const Scratch folder;
  const std::string config = folder / "config";
  const ScopedEnv home("XDG_CONFIG_HOME", config.c_str());
  const ScopedEnv no_text("TRIREME_SECRET", nullptr);
  const ScopedEnv no_file("TRIREME_SECRET_FILE", nullptr);
  const std::string derived = secret_of_job("job-a").to_text();
  EXPECT_EQ(secret_of_job("job-a").to_text(), derived);
  EXPECT_NE(secret_of_job("job-b").to_text(), derived);
  struct stat info {};
  ASSERT_EQ(::stat((config + "/trireme/key").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);

  const std::string path = folder / "secret";
  std::ofstream(path) << "the secret of a file\n";
  const ScopedEnv file("TRIREME_SECRET_FILE", path.c_str());
  ::chmod(path.c_str(), 0644);
  EXPECT_THAT(sentence_of<ConfigError>([] { secret_of_job("job-a"); }),
              AllOf(HasSubstr("chmod 600 " + path), HasSubstr("0644"),
                    Not(HasSubstr("the secret of a file"))));
  ::chmod(path.c_str(), 0600);
  EXPECT_EQ(secret_of_job("job-a").to_text(), "the secret of a file");

  const ScopedEnv text("TRIREME_SECRET", "the secret of the environment");
  EXPECT_EQ(secret_of_job("job-a").to_text(), "the secret of the environment");
}

TEST(Secret, ManyFirstUsersGetOneKey) {
  const Scratch folder;
  const std::string config = folder / "config";
  const ScopedEnv home("XDG_CONFIG_HOME", config.c_str());
  const ScopedEnv no_text("TRIREME_SECRET", nullptr);
  const ScopedEnv no_file("TRIREME_SECRET_FILE", nullptr);
  std::vector<std::future<std::string>> users;
  for (int i = 0; i < 8; ++i)
    users.push_back(
        std::async(std::launch::async, [] { return secret_of_job("job-a").to_text(); }));
  std::set<std::string> keys;
  for (auto& user : users) keys.insert(user.get());
  EXPECT_EQ(keys.size(), 1u);
  size_t num_files = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(config + "/trireme"))
    ++num_files;
  EXPECT_EQ(num_files, 1u) << "a temporary file was left behind";
}

}  // namespace
}  // namespace trireme::net::testing
