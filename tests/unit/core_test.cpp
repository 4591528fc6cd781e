#include <gmock/gmock.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <set>

#include "support/sentence.h"
#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/core/json.h"
#include "trireme/core/log.h"
#include "trireme/core/op_info.h"
#include "trireme/core/philox.h"
#include "trireme/core/trace.h"
#include "trireme/core/units.h"

namespace trireme::core {
namespace {

using namespace std::chrono_literals;
using Words = std::array<uint32_t, 4>;

using test::sentence_of;

/// A variable for the length of a test.
class WithEnv {
 public:
  WithEnv(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~WithEnv() { ::unsetenv(name_); }

 private:
  const char* name_;
};

// kat_vectors of Random123, philox4x32 with 10 rounds.
TEST(Philox, GivesThePublishedVectors) {
  constexpr uint32_t kOnes = 0xFFFFFFFF;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, TakesASeedAndAPlaceLowWordFirst) {
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
            philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}));
}

TEST(Units, BytesReadAsPeopleWriteThem) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(4096), "4 KiB");
  EXPECT_EQ(format_bytes(kMiB + kMiB / 2), "1.5 MiB");
  EXPECT_EQ(format_bytes(3 * kGiB), "3 GiB");
}

TEST(Units, ParsesSizesAndNothingElse) {
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("4K"), 4 * kKiB);
  EXPECT_EQ(parse_bytes("4KiB"), 4 * kKiB);
  EXPECT_EQ(parse_bytes("64M"), 64 * kMiB);
  EXPECT_EQ(parse_bytes("2G"), 2 * kGiB);
  for (const char* bad :
       {"", "K", "-1", "4X", "4 K", "1.5M", "99999999999G", "99999999999999999999"})
    EXPECT_EQ(parse_bytes(bad), std::nullopt) << bad;
}

TEST(Units, DurationsCarryTheirUnit) {
  EXPECT_EQ(format_duration(12us), "12 us");
  EXPECT_EQ(format_duration(3400us), "3.4 ms");
  EXPECT_EQ(format_duration(30s), "30 s");
  EXPECT_EQ(format_duration(5min), "5 min");
  EXPECT_EQ(from_seconds(1.5), 1500ms);
  EXPECT_GT(from_seconds(1e300), 24h);
}

TEST(Log, SaysWhatItsLevelAllowsAndWho) {
  const auto said = [](const char* level) {
    const WithEnv wanted("TRIREME_LOG", level);
    ::testing::internal::CaptureStderr();
    const Log log(3, "tensor");
    log.info("it began");
    log.warning("it is late");
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string clock = "[0-9][0-9]:[0-9][0-9]:[0-9][0-9][.][0-9][0-9][0-9] ";
  const std::string warning = clock + "warning \\[rank 3 tensor\\] it is late\n";
  EXPECT_THAT(said(""), ::testing::MatchesRegex(warning));
  EXPECT_THAT(said("info"),
              ::testing::MatchesRegex(clock + "info \\[rank 3 tensor\\] it began\n" + warning));
  EXPECT_EQ(said("error"), "");
  EXPECT_EQ(said("off"), "");
  const WithEnv loud("TRIREME_LOG", "loud");
  EXPECT_EQ(sentence_of<ConfigError>([] { Log(0, "world"); }),
            "TRIREME_LOG='loud' must be trace, debug, info, warning, error or off");
}

TEST(Env, UnsetAndEmptyAreNothing) {
  ::unsetenv("TRIREME_TEST");
  EXPECT_EQ(env("TRIREME_TEST"), std::nullopt);
  EXPECT_EQ(env_int("TRIREME_TEST"), std::nullopt);
  const WithEnv empty("TRIREME_TEST", "");
  EXPECT_EQ(env("TRIREME_TEST"), std::nullopt);
  EXPECT_EQ(env_double("TRIREME_TEST"), std::nullopt);
}

TEST(Env, NumbersAreReadWholeOrRefusedByName) {
  {
    const WithEnv good("TRIREME_TEST", "-42");
    EXPECT_EQ(env_int("TRIREME_TEST"), -42);
    EXPECT_EQ(env_double("TRIREME_TEST"), -42.0);
  }
  const WithEnv bad("TRIREME_TEST", "8ranks");
  EXPECT_EQ(sentence_of<ConfigError>([] { env_int("TRIREME_TEST"); }),
            "TRIREME_TEST='8ranks' is not a whole number");
  EXPECT_EQ(sentence_of<ConfigError>([] { env_double("TRIREME_TEST"); }),
            "TRIREME_TEST='8ranks' is not a number");
  for (const char* text : {"", " 1", "1 ", "0x10", "1.0", "99999999999999999999"})
    EXPECT_EQ(parse_int(text), std::nullopt) << text;
  for (const char* text : {"", "inf", "nan", "1e999", "1,5"})
    EXPECT_EQ(parse_double(text), std::nullopt) << text;
}

TEST(Json, KeepsTheOrderOfKeysAndSaysWhereItIsWrong) {
  EXPECT_EQ(parse_json(R"({"b": 1, "a": 2})", "x").dump(), R"({"b":1,"a":2})");
  EXPECT_EQ(sentence_of<Error>([] { parse_json(R"({"a" 1})", "index.json"); }),
            "index.json is not JSON: error at byte 6");
}

TEST(Trace, MergesWhatRanksSawIntoOneDocument) {
  using std::chrono::microseconds;
  const auto origin = core::Trace::time_of_day();
  const auto now = core::Trace::Clock::now();
  core::Trace first(0, origin), second(7, origin);
  first.add(core::Trace::Row::Actions, "0F1 \"quoted\"", now, now + microseconds(1500));
  second.add(core::Trace::Row::Ops, "send", now + microseconds(500), now + microseconds(600));
  second.add(core::Trace::Row::Ops, "recv", now + microseconds(550), now + microseconds(900));
  std::map<std::string, std::vector<core::Json>> by_kind;
  for (const auto& one :
       core::parse_json(core::Trace::merged({first.take(), second.take()}), "trace"))
    by_kind[one.at("ph").get<std::string>()].push_back(one);
  ASSERT_EQ(by_kind["X"].size(), 1u);
  const auto& action = by_kind["X"][0];
  EXPECT_EQ(action.at("name"), "0F1 \"quoted\"");
  EXPECT_EQ(action.at("pid"), 0);
  EXPECT_NEAR(action.at("dur").get<double>(), 1500, 1e-3);
  EXPECT_LT(action.at("ts").get<double>(), 60e6) << "counted from the origin";
  // Ops overlap: they begin and end for themselves.
  ASSERT_EQ(by_kind["b"].size(), 2u);
  ASSERT_EQ(by_kind["e"].size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(by_kind["b"][i].at("id"), by_kind["e"][i].at("id"));
    EXPECT_EQ(by_kind["b"][i].at("pid"), 7);
  }
  EXPECT_NE(by_kind["b"][0].at("id"), by_kind["b"][1].at("id"));
  EXPECT_NEAR(by_kind["e"][1].at("ts").get<double>() - by_kind["b"][1].at("ts").get<double>(), 350,
              1e-3);
  // The clocks of two ranks are one, to what reading them takes.
  EXPECT_NEAR(by_kind["b"][0].at("ts").get<double>() - action.at("ts").get<double>(), 500, 200);
  EXPECT_EQ(core::parse_json(core::Trace::merged({first.take()}), "trace").size(), 3u)
      << "taken once";
  EXPECT_EQ(core::Trace::merged({}), "[\n\n]\n");
  // A row of a GPU is there only if it has events; they may come when the trace is taken.
  first.before_take([&] { first.add(core::Trace::Row::Gpu, "h.0", now, now + microseconds(5)); });
  const auto late = core::parse_json(core::Trace::merged({first.take()}), "trace");
  ASSERT_EQ(late.size(), 5u);
  EXPECT_EQ(late.back().at("cat"), "gpu");
  EXPECT_EQ(late.back().at("ph"), "X");
}

TEST(Check, ThrowsTheSentence) {
  EXPECT_NO_THROW(check(true, "never {}", 1));
  EXPECT_EQ(sentence_of<MisuseError>([] { check(false, "rank {} of {}", 9, 8); }), "rank 9 of 8");
  EXPECT_EQ(errno_text(ENOENT), "No such file or directory");
}

OpInfo all_reduce_1024() {
  OpInfo info{.kind = OpKind::AllReduce, .dtype = DType::Float32, .item_bytes = 4};
  info.set_shape(std::array<int64_t, 1>{1024});
  return info;
}

TEST(OpInfo, SaysWhatItIs) {
  OpInfo info = all_reduce_1024();
  EXPECT_EQ(to_string(info), "all_reduce [1024] float32");
  EXPECT_EQ(info.bytes(), 4096);
  info.reduce = ReduceOp::Mean;
  info.algorithm = Algorithm::Ring;
  info.set_name("grads");
  EXPECT_EQ(to_string(info), "all_reduce 'grads' [1024] float32 mean by ring");
  EXPECT_EQ(to_string(OpInfo{}), "barrier");

  OpInfo send{.kind = OpKind::Send, .dtype = DType::BFloat16, .root = 3, .tag = 7};
  send.set_shape(std::array<int64_t, 2>{2, 0});
  EXPECT_EQ(to_string(send), "send [2, 0] bfloat16 to rank 3 tag 7");
  send.kind = OpKind::Recv;
  EXPECT_EQ(to_string(send), "recv [2, 0] bfloat16 from rank 3 tag 7");
  send.kind = OpKind::Broadcast;
  EXPECT_EQ(to_string(send), "broadcast [2, 0] bfloat16 root 3");
}

TEST(OpInfo, FoldsManyDimsAndCutsLongNames) {
  OpInfo info;
  info.set_shape(std::array<int64_t, 10>{2, 1, 1, 1, 1, 1, 1, 3, 5, 7});
  EXPECT_EQ(info.ndim, OpInfo::kMaxDims);
  EXPECT_EQ(info.numel(), 2 * 3 * 5 * 7);
  info.set_name(std::string(100, 'x'));
  EXPECT_EQ(std::string(info.name.data()), std::string(23, 'x'));
  OpInfo scalar;
  scalar.set_shape({});
  EXPECT_EQ(scalar.numel(), 1);
}

TEST(Fingerprint, DiffersWhereAnyFieldDoesButTheName) {
  const OpInfo plain = all_reduce_1024();
  const uint64_t same = fingerprint(1, 2, plain);
  OpInfo named = plain;
  named.set_name("grads");
  EXPECT_EQ(fingerprint(1, 2, named), same);

  std::set<uint64_t> seen = {same, fingerprint(2, 2, plain), fingerprint(1, 3, plain),
                             fingerprint(2, 1, plain)};
  const std::function<void(OpInfo&)> changes[] = {
      [](OpInfo& info) { info.kind = OpKind::Broadcast; },
      [](OpInfo& info) { info.dtype = DType::Int32; },
      [](OpInfo& info) { info.reduce = ReduceOp::Max; },
      [](OpInfo& info) { info.algorithm = Algorithm::Tree; },
      [](OpInfo& info) { info.item_bytes = 8; },
      [](OpInfo& info) { info.root = 0; },
      [](OpInfo& info) { info.dims[0] = 1025; },
      [](OpInfo& info) {
        info.set_shape(std::array<int64_t, 2>{1024, 1});
      },
      [](OpInfo& info) {
        info.set_shape(std::array<int64_t, 2>{1, 1024});
      },
      [](OpInfo& info) { info.set_shape({}); },
  };
  for (const auto& change : changes) {
    OpInfo other = plain;
    change(other);
    EXPECT_TRUE(seen.insert(fingerprint(1, 2, other)).second) << to_string(other);
  }
}

}  // namespace
}  // namespace trireme::core
