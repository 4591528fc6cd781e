#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <regex>

#include "support/config_support.h"
#include "trireme/config/keys.h"
#include "trireme/config/mesh.h"
#include "trireme/config/starting_point.h"
#include "trireme/config/text.h"
#include "trireme/config/validate.h"

namespace trireme::config {
namespace {

std::string refusal_of_mesh(const MeshKeys& mesh, int world_size) {
  return error_of([&] { resolve_mesh(mesh, world_size); });
}

TEST(ConfigMesh, GivesTheZeroWhatIsLeft) {
  EXPECT_EQ(resolve_mesh({}, 1), Degrees{});
  EXPECT_EQ(resolve_mesh({.tensor = 2}, 6), (Degrees{.replica = 3, .tensor = 2}));
  EXPECT_EQ(resolve_mesh({.replica = 2, .shard = 0, .pipe = 2, .expert = 2}, 12),
            (Degrees{.pipe = 2, .replica = 2, .shard = 3, .expert = 2}));
  EXPECT_EQ(wanted_ranks({.shard = 2, .tensor = 3, .pipe = 5, .context = 7, .expert = 2}), 210);
}

TEST(ConfigMesh, RefusesWithTheNumbers) {
  EXPECT_EQ(refusal_of_mesh({.replica = 2, .tensor = 3}, 4),
            "the mesh needs 6 ranks (replica 2 x tensor 3), but the launcher started 4: use -n 6");
  EXPECT_EQ(refusal_of_mesh({.replica = 2}, 4),
            "the mesh needs 2 ranks, but the launcher started 4: use -n 2 or mesh.replica=4");
  EXPECT_EQ(refusal_of_mesh({.replica = 1}, 3),
            "the mesh needs 1 rank, but the launcher started 3: use -n 1 or mesh.replica=3");
  EXPECT_EQ(refusal_of_mesh({.replica = 1, .tensor = 2}, 6),
            "the mesh needs 2 ranks, but the launcher started 6: use -n 2 or mesh.replica=3");
  EXPECT_EQ(
      refusal_of_mesh({.tensor = 3}, 4),
      "the mesh (tensor 3) needs a multiple of 3 ranks, but the launcher started 4: use -n 6");
  EXPECT_EQ(refusal_of_mesh({.expert = 2}, 3),
            "Mesh: expert 2 does not divide replica 3 x shard 1 x context 1 = 3");
  EXPECT_EQ(refusal_of_mesh({.shard = 0}, 3),
            "mesh: replica and shard cannot both be 0, which means what is left of the world");
  EXPECT_EQ(refusal_of_mesh({.pipe = -2}, 2), "mesh.pipe = -2 is less than 0");
  EXPECT_EQ(refusal_of_mesh({.pipe = 0}, 2), "Mesh: pipe is 0, but a degree is at least 1");
  EXPECT_EQ(error_of([] { wanted_ranks({.tensor = 1 << 16, .pipe = 1 << 15}); }),
            "mesh: pipe 32768 x tensor 65536 is more than 99999 ranks");
  EXPECT_EQ(error_of([] { wanted_ranks({.replica = 2'000'000'000}); }),
            "mesh: replica 2000000000 is more than 99999 ranks");
  EXPECT_EQ(wanted_ranks({.replica = 99'999}), 99'999);
}

/// Another value that the key may have.
Value another(const Key& key, const Value& value) {
  if (key.name == "pipeline.balance") return "3,5,5,3";
  if (key.name == "precision.reduce") return "bfloat16";  // goes with any other
  if (const auto* flag = std::get_if<bool>(&value)) return !*flag;
  if (const auto* whole = std::get_if<int64_t>(&value)) return *whole == 0 ? 1 : 2 * *whole;
  if (const auto* number = std::get_if<double>(&value)) {
    const bool fits = *number / 3 >= key.limits.at_least.value_or(0);
    return *number == 0 ? 0.1 : fits ? *number / 3 : *number * 3;
  }
  if (std::holds_alternative<std::vector<double>>(value)) return std::vector<double>{0.1 / 3, 0};
  if (std::holds_alternative<std::vector<std::string>>(value))
    return std::vector<std::string>{"*.ln*", "odd \"text\""};
  if (std::holds_alternative<Rows>(value))
    return Rows{{{"match", "odd \"text\""}, {"lr", 0.1 / 3}}, {{"match", "*"}}};
  auto words = key.limits.words;
  words.insert(words.end(), key.limits.later.begin(), key.limits.later.end());
  if (words.empty()) return "odd \"text\" \\ with\n\t\x01\x7f and é";
  return std::string(words.front() == std::get<std::string>(value) ? words.back() : words.front());
}

TEST(ConfigText, ReadsBackEveryKeyAndKnowsWhichMustMatch) {
  const Config all = parse(
      "run.steps = 0\nmodel.heads = 8\nmodel.kv_heads = 4\ndata.path = 'x'\ndata.valid = 'y'\n"
      "data.eod = 7\n"
      "lora.targets = ['*']",
      "a");
  for (const Key& key : keys()) {
    Config base = all;
    if (key.name == "mesh.expert") base.model.kind = "moe-gpt";  // others have none to deal
    Config changed = base;
    set(key, changed, another(key, get(key, base)));
    ASSERT_NE(changed, base) << key.name;
    const Config read = parse(to_toml(changed), "a");
    EXPECT_EQ(read, changed) << key.name;
    const bool must_match = key.name.starts_with("model.") || key.name.starts_with("lora.") ||
                            key.name == "run.seed" || key.name == "batch.global" ||
                            key.name == "optim.kind";
    EXPECT_EQ(first_difference(base, changed).has_value(), must_match) << key.name;
    EXPECT_EQ(list_keys().find(std::string(key.name) + ' ') != std::string::npos,
              key.built == Built::Now)
        << key.name;
  }
}

TEST(ConfigText, NamesTheFirstDifferenceWithBothValues) {
  const Config saved = parse("", "a");
  const Config now = parse("run.seed = 2\nmodel.hidden = 256\nrun.steps = 1", "a");
  EXPECT_EQ(first_difference(saved, now), "run.seed was 1, is 2 now");
  EXPECT_EQ(first_difference(saved, parse("optim.kind = 'sgd'", "a")),
            "optim.kind was \"adamw\", is \"sgd\" now");
  EXPECT_EQ(first_difference(parse("optim = {kind = 'sgd', momentum = 0}", "a"),
                             parse("optim = {kind = 'sgd', momentum = 0.9}", "a")),
            "optim.momentum was 0.0, is 0.9 now");
  EXPECT_EQ(first_difference(saved, parse("data = {kind = 'text', path = 'x'}", "a")), std::nullopt)
      << "data is compared by what it holds";
  EXPECT_EQ(first_difference(saved, saved), std::nullopt);
}

TEST(ConfigText, ReadsBackEveryDouble) {
  std::mt19937_64 random(7);
  std::vector<double> values = {
      0.0, -0.0, 5e-324, 1.7976931348623157e308, 1e16, 123456789012345680};
  while (values.size() < 2000) {
    const auto value = std::abs(std::bit_cast<double>(random()));
    if (std::isfinite(value)) values.push_back(value);
  }
  for (const double value : values) {
    const double read = parse("optim.lr = " + to_text(value), "a").optim.lr;
    ASSERT_EQ(std::bit_cast<uint64_t>(read), std::bit_cast<uint64_t>(value)) << to_text(value);
  }
}

/// A message that a terminal can show whatever the input was.
void expect_short_line(const std::string& message) {
  EXPECT_THAT(message, testing::StartsWith("gpt.toml:1:"));
  EXPECT_LT(message.size(), 300u);
  EXPECT_EQ(message.find_first_of("\n\t\x1b"), message.npos);
}

TEST(ConfigHostile, LongAndDeepInputIsRefusedInAShortLine) {
  const std::string million(1'000'000, 'x');
  EXPECT_EQ(parse("run.dir = '" + million + "'", "a").run.dir, million);
  std::string dots = "a";
  while (dots.size() < 1'000'000) dots += ".a";
  std::string braces;
  while (braces.size() < 1'000'000) braces += "a={";
  for (const std::string& text :
       {million, million + " = 1", "[" + million + "]", "run.seed = '" + million + "'",
        "model.kind = '" + million + "'", dots + " = 1", "[" + dots + "]", braces,
        "x = " + std::string(100'000, '['), "run.seed = " + std::string(100'000, '9')})
    expect_short_line(refusal(text));
  EXPECT_LT(refusal("", {"run.seed=" + dots}).size(), 300u);
  EXPECT_LT(refusal("", {million + "=1"}).size(), 300u);
}

TEST(ConfigHostile, OddLettersAreRefusedInAShortLine) {
  for (const std::string& text :
       {std::string("ключ = 1"), std::string("\"ключ\" = 1"), std::string("\"a\\nb\\u001b\" = 1"),
        std::string("\xff = 1"), std::string("run.dir = 'a\0b'", 15), std::string("\0", 1),
        std::string("run.dir = \"a\\u0000b\""), std::string("run.seed = \"a\\nb\"")})
    expect_short_line(refusal(text));
  EXPECT_EQ(parse("run.dir = 'ключ'", "a").run.dir, "ключ");
  EXPECT_EQ(parse("run.dir = \"\"\"a\\\n  é\"\"\"", "a").run.dir, "aé");
}

TEST(ConfigHostile, EmptyFilesAreAllDefaults) {
  for (const char* text : {"", "\xEF\xBB\xBF", "\n\n", "# nothing", "[run]\n[optim]"})
    EXPECT_EQ(parse(text, "a"), resolved({}));
}

TEST(ConfigHostile, FilesThatCannotBeReadSayWhy) {
  const auto load_error = [](const std::string& path) { return error_of([&] { load(path); }); };
  const std::string folder = testing::TempDir() + "config_test_" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  const std::string file = folder + "/gpt.toml";
  EXPECT_EQ(load_error(file), file + ": cannot be opened: No such file or directory");
  EXPECT_EQ(load_error(folder), folder + ": cannot be read: Is a directory");
  EXPECT_EQ(load_error("/proc/self/mem"), "/proc/self/mem: cannot be read: Input/output error");
  EXPECT_EQ(load_error("/dev/zero"), "/dev/zero: is over 16 MiB, too large for a configuration");
  std::ofstream(file) << "[run]\nsteps = 5\nseed = 'x'\n";
  EXPECT_THAT(load_error(file), testing::StartsWith(file + ":3:8: run.seed = \"x\" is a string"));
  std::ofstream(file) << "[run]\nsteps = 5\n";
  EXPECT_EQ(load(file, Overrides{"run.seed=3"}).run.steps, 5);
  std::filesystem::remove_all(folder);
}

TEST(StartingPoint, IsAcceptedAndItsCommentsAreTheDefaults) {
  const auto models = starting_points();
  EXPECT_THAT(models, ::testing::ElementsAre("gpt", "llama", "moe-gpt", "moe-llama", "mlp",
                                             "resnet", "vit"));
  for (const std::string_view model : models) {
    const std::string text = starting_point(model);
    const Config config = parse(text, "new.toml");
    refuse_unbuilt(config);
    EXPECT_EQ(config.model.kind, model);
    EXPECT_EQ(config.run.dir, fmt::format("runs/{}", model));
    const std::string all = std::regex_replace(text, std::regex("\n# ([a-z_]+ = )"), "\n$1");
    EXPECT_NE(all, text);
    EXPECT_EQ(parse(all, "new.toml"), config) << model;
    EXPECT_EQ(text.find("experts:") != std::string::npos, config.model.has_experts());
  }
  EXPECT_THAT(starting_point("vit"), ::testing::Not(::testing::HasSubstr("resnet:")));
  EXPECT_THAT(starting_point("gpt"), ::testing::Not(::testing::HasSubstr("rope_theta")));
  EXPECT_THAT(starting_point("llama"), ::testing::HasSubstr("\n# rope_theta = 10000.0 "));
  EXPECT_EQ(
      error_of([] { starting_point("lama"); }),
      fmt::format("there is no starting point for 'lama'; there are {}", fmt::join(models, ", ")));
}

}  // namespace
}  // namespace trireme::config
