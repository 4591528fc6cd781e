// `trireme ckpt` as people run it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "support/checkpoints.h"
#include "support/command.h"
#include "support/scratch.h"

namespace trireme {
namespace {

using format::BoxRange;
using test::CommandResult;
using test::SavedTensor;
using test::Scratch;
using ::testing::HasSubstr;
using ::testing::Not;

CommandResult ckpt(std::vector<std::string> args) {
  args.insert(args.begin(), {TRIREME_BINARY_DIR "/bin/trireme", "ckpt"});
  return test::run_command(std::move(args));
}

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), 4 * values.size()};
}

const std::vector<float> kValues = {0, 1, 2, 3, 4, 5};

/// A run with one checkpoint of 'w' [2, 3] and 'n', cut as a mesh of two ranks would.
struct Ckpt : testing::Test {
  Scratch scratch;
  std::string run = scratch / "run", folder = run + "/checkpoints";
  std::string step = put(folder, 20, kValues, {{{0, 0}, {2, 1}, 0, 2}, {{0, 1}, {2, 2}, 0, 4}});

  static std::string put(const std::string& where, int64_t step, const std::vector<float>& values,
                         const std::vector<BoxRange>& pieces) {
    return test::save(where, step,
                      {{"w", {"F32", {2, 3}, floats(values), pieces}},
                       {"n", {"I64", {}, std::string(8, '\3'), {test::whole_region({})}}}},
                      2, {{"cursor", step}});
  }
  static std::vector<BoxRange> whole() { return {test::whole_region({2, 3})}; }
};

TEST_F(Ckpt, LsShowsTheStepsOfARun) {
  put(folder, 40, kValues, whole());
  for (const std::string& path : {run, folder, folder + "/"}) {
    const auto result = ckpt({"ls", path});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("  20  "));
    EXPECT_THAT(result.out, HasSubstr("step-00000040"));
  }
  EXPECT_THAT(ckpt({"ls", step}).out, Not(HasSubstr("step-00000040")));
}

TEST_F(Ckpt, LsTellsTheStateOfEveryStep) {
  const std::string cut = put(folder, 40, kValues, whole()),
                    gone = put(folder, 60, kValues, whole());
  ASSERT_EQ(::truncate((cut + "/pieces-0.safetensors").c_str(), 20), 0);
  ASSERT_EQ(::unlink((gone + "/pieces-0.safetensors").c_str()), 0);
  ASSERT_EQ(::rename(put(folder, 50, kValues, whole()).c_str(),
                     (folder + "/step-00000050.damaged").c_str()),
            0);
  const auto result = ckpt({"ls", run});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("        20  ok "));
  EXPECT_THAT(result.out, HasSubstr("        40  damaged     "));
  EXPECT_THAT(result.out,
              HasSubstr("        50  put aside   " + folder + "/step-00000050.damaged"));
  EXPECT_THAT(result.out, HasSubstr("        60  damaged     "));
  const auto json = nlohmann::json::parse(ckpt({"ls", run, "--json"}).out);
  ASSERT_EQ(json.size(), 4u);
  EXPECT_EQ(json[0]["state"], "ok");
  EXPECT_EQ(json[0]["tensors"], 2);
  EXPECT_EQ(json[1]["state"], "damaged");
  EXPECT_EQ(json[2]["folder"], folder + "/step-00000050.damaged");
}

TEST_F(Ckpt, LsTellsOfStepsOfWhichNoneIsWhole) {
  const std::string other = scratch / "other";
  ASSERT_EQ(
      ::rename(put(other, 5, kValues, whole()).c_str(), (other + "/step-00000005.damaged").c_str()),
      0);
  const auto result = ckpt({"ls", other});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("         5  put aside"));
  const std::string none = scratch / "none";
  ASSERT_EQ(::mkdir(none.c_str(), 0755), 0);
  EXPECT_EQ(ckpt({"ls", none}).code, 2);
}

TEST_F(Ckpt, InfoIsShortHoweverMuchWasSavedBesides) {
  nlohmann::json many = nlohmann::json::object();
  for (int i = 0; i < 90; ++i) many["parameter." + std::to_string(i)] = i;
  const std::string other = test::save(
      scratch / "long", 1, {{"n", {"I64", {}, std::string(8, '\3'), {test::whole_region({})}}}}, 1,
      {{"config", "a = 1\nb = 2\n"}, {"optimizer", {{"kind", "adamw"}, {"steps", many}}}});
  const auto text = ckpt({"info", other});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("  config: 2 lines\n"));
  EXPECT_THAT(text.out, HasSubstr("  optimizer: kind \"adamw\", steps (90)\n"));
  EXPECT_LT(std::count(text.out.begin(), text.out.end(), '\n'), 12) << text.out;
}

TEST_F(Ckpt, InfoShowsTensorsAndWhatElseWasSaved) {
  const auto text = ckpt({"info", run});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("F32         2  [2, 3]"));
  EXPECT_THAT(text.out, HasSubstr("\n  cursor: 20\n"));
  const auto json = nlohmann::json::parse(ckpt({"info", step, "--json"}).out);
  EXPECT_EQ(json["step"], 20);
  EXPECT_EQ(json["tensors"]["w"]["pieces"].size(), 2u);
  EXPECT_EQ(json["extra"]["cursor"], 20);
}

TEST_F(Ckpt, VerifyFindsDamage) {
  EXPECT_EQ(ckpt({"verify", run}).code, 0);
  EXPECT_THAT(ckpt({"verify", run}).out, HasSubstr("is whole: 2 tensors"));
  const std::string file = step + "/pieces-0.safetensors";
  std::string bytes = test::bytes_of(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  test::put_bytes(file, bytes);
  const auto result = ckpt({"verify", step});
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.out, HasSubstr("pieces-0.safetensors: block 0"));
  EXPECT_THAT(result.out, HasSubstr("w"));
  EXPECT_EQ(ckpt({"diff", step, step}).code, 1);
  test::put_bytes(step + "/index.json", "{");
  EXPECT_EQ(ckpt({"verify", step}).code, 3);
  EXPECT_EQ(ckpt({"ls", run}).code, 0);
}

TEST_F(Ckpt, DiffComparesAcrossCuts) {
  const auto same = ckpt({"diff", run, put(scratch / "b", 20, kValues, whole())});
  EXPECT_EQ(same.code, 0) << same.out << same.err;
  EXPECT_EQ(same.out, "equal: 2 tensors, bit for bit\n");
  const auto other = ckpt({"diff", run, put(scratch / "c", 21, {0, 1, 2.5, 3, 4, 4}, whole())});
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.out, HasSubstr("w: 2 of 6 elements differ, max |a-b| = 1\n"));
  EXPECT_THAT(other.out, HasSubstr("'cursor'"));
  EXPECT_THAT(other.out, HasSubstr("different: 1 of 2 tensors"));
  const std::string third = test::save(
      scratch / "d", 1, {{"w", {"F32", {3, 2}, floats(kValues), {test::whole_region({3, 2})}}}});
  const auto shapes = ckpt({"diff", step, third});
  EXPECT_EQ(shapes.code, 1);
  EXPECT_THAT(shapes.out, HasSubstr("w: F32 [2, 3] and F32 [3, 2]"));
  EXPECT_THAT(shapes.out, HasSubstr("n: only in " + step));
}

TEST_F(Ckpt, DiffNamesTheTensorThatIsFurthestOff) {
  const auto save = [&](const std::string& name, float a, float b) {
    const auto tensor = [](float value) -> SavedTensor {
      return {"F32", {1}, floats({value}), {test::whole_region({1})}};
    };
    return test::save(scratch / name, 1, {{"a", tensor(a)}, {"b", tensor(b)}});
  };
  const auto result = ckpt({"diff", save("x", 0, 0), save("y", 0.5, -3)});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out,
              HasSubstr("different: 2 of 2 tensors, the largest in b (max |a-b| = 3)\n"));
}

TEST_F(Ckpt, WhatIsNewerOrUnfinishedIsSaid) {
  ASSERT_EQ(::mkdir((folder + "/step-00000030").c_str(), 0755), 0);
  EXPECT_THAT(ckpt({"ls", run}).out, HasSubstr("unfinished  " + folder + "/step-00000030"));
  auto json = nlohmann::ordered_json::parse(test::bytes_of(step + "/index.json"));
  json["version"] = 2;
  test::put_bytes(step + "/index.json", json.dump());
  EXPECT_THAT(ckpt({"ls", run}).out, HasSubstr("newer  "));
  for (const char* action : {"info", "verify"}) {
    const auto result = ckpt({action, run});
    EXPECT_EQ(result.code, 2) << "not damage";
    EXPECT_THAT(result.err, HasSubstr("a newer Trireme wrote it"));
  }
}

TEST_F(Ckpt, MistakesAreSentencesAndExitTwo) {
  const auto says = [](std::vector<std::string> args) {
    const auto result = ckpt(std::move(args));
    EXPECT_EQ(result.code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(says({"ls", scratch / "none"}), HasSubstr("there is no '"));
  EXPECT_THAT(says({"verify", step + "/index.json"}), HasSubstr("not a folder"));
  EXPECT_THAT(says({"info", scratch.path()}), HasSubstr("holds no finished checkpoint"));
  EXPECT_THAT(says({}), HasSubstr("ls, info, verify, diff, reshard, import, export or merge"));
  EXPECT_THAT(says({"list", run}), HasSubstr("unknown action 'list'"));
  EXPECT_THAT(says({"diff", run}), HasSubstr("two paths, not 1"));
  EXPECT_THAT(says({"verify", run, "--json"}), HasSubstr("belongs to ls and info"));
  EXPECT_THAT(says({"ls", run, "--jsn"}), HasSubstr("unknown option --jsn"));
}

TEST_F(Ckpt, HelpSaysHow) {
  for (const auto& args : {std::vector<std::string>{"--help"}, {"diff", "--help"}}) {
    const auto help = ckpt(args);
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.out, HasSubstr("trireme ckpt diff A B"));
    EXPECT_THAT(help.out, HasSubstr("3 damaged"));
  }
}

}  // namespace
}  // namespace trireme
