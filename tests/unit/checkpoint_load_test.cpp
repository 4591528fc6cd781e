#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "support/checkpoints.h"
#include "support/scratch.h"
#include "trireme/core/error.h"
#include "trireme/format/load.h"
#include "trireme/format/verify.h"

namespace trireme::format {
namespace {

using test::bytes_of;
using test::cut;
using test::outcome_of;
using test::put_bytes;
using test::save;
using test::SavedTensor;
using test::Scratch;
using test::sentence_of;
using test::whole_region;
using ::testing::HasSubstr;

class Chance {
 public:
  explicit Chance(unsigned seed) : random_(seed) {}
  int64_t pick(int64_t low, int64_t high) {  // both included
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }

 private:
  std::mt19937 random_;
};

/// Cuts the box at random until the parts are boxes or flat ranges: what meshes do, and worse.
void cut_up(const Box& box, Chance& chance, int depth, std::vector<BoxRange>& parts) {
  const int64_t numel = box.numel();
  if (depth > 0 && !box.shape.empty() && chance.pick(0, 3) > 0) {
    const auto dim =
        static_cast<size_t>(chance.pick(0, static_cast<int64_t>(box.shape.size()) - 1));
    Box low = box, high = box;
    low.shape[dim] = chance.pick(0, box.shape[dim]);
    high.offset[dim] += low.shape[dim];
    high.shape[dim] -= low.shape[dim];
    cut_up(low, chance, depth - 1, parts);
    cut_up(high, chance, depth - 1, parts);
    return;
  }
  for (int64_t begin = 0; begin < numel;) {
    const int64_t count = chance.pick(0, 1) == 0 ? numel - begin : chance.pick(1, numel - begin);
    parts.push_back({box.offset, box.shape, begin, count});
    begin += count;
  }
}

std::vector<BoxRange> random_cut(const std::vector<int64_t>& shape, Chance& chance) {
  std::vector<BoxRange> parts;
  cut_up({std::vector<int64_t>(shape.size(), 0), shape}, chance, 4, parts);
  return parts;
}

std::string numbered(const std::vector<int64_t>& shape) {
  std::string bytes;
  for (int32_t i = 0; i < *checked_numel(shape); ++i)
    bytes.append(reinterpret_cast<const char*>(&i), 4);
  return bytes;
}

Piece piece_of(const std::string& name, const std::vector<int64_t>& whole, const BoxRange& region) {
  return {name, whole, region.offset, region.shape, region.begin, region.count};
}

TEST(Checkpoint, AnyCutReadsWhatAnyOtherCutSaved) {
  const Scratch scratch;
  Chance chance(7);
  int many = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> shape(static_cast<size_t>(chance.pick(0, 4)));
    for (int64_t& size : shape) size = chance.pick(round % 10 == 0 ? 0 : 1, 6);
    const std::string bytes = numbered(shape);
    const auto stored = random_cut(shape, chance);
    many += stored.size() > 4 ? 1 : 0;
    Checkpoint checkpoint(save(scratch / "c", 1, {{"w", {"I32", shape, bytes, stored}}},
                               static_cast<int>(chance.pick(1, 3))));
    for (const BoxRange& wanted : random_cut(shape, chance)) {
      std::string got(static_cast<size_t>(wanted.count * 4), '\xee');
      checkpoint.read(piece_of("w", shape, wanted), "I32", got.data());
      ASSERT_EQ(got, cut(bytes, shape, 4, wanted)) << "round " << round;
    }
    EXPECT_TRUE(find_damage(checkpoint.folder()).empty());
  }
  EXPECT_GT(many, 50) << "the cuts are too plain to prove anything";
}

TEST(Checkpoint, ReadsTensorsOfManyBlocks) {
  const Scratch scratch;
  const std::vector<int64_t> shape = {1000, 700};  // 2.7 MiB
  const std::string bytes = numbered(shape);
  const BoxRange left{{0, 0}, {1000, 300}, 0, 300'000}, right{{0, 300}, {1000, 400}, 0, 400'000};
  Checkpoint checkpoint(save(scratch / "c", 1, {{"w", {"I32", shape, bytes, {left, right}}}}));
  std::string got(bytes.size(), '\0');
  checkpoint.read(whole_piece("w", shape), "I32", got.data());
  EXPECT_TRUE(got == bytes);
  const BoxRange range{{0, 0}, shape, 123'456, 234'567};
  got.resize(4 * 234'567);
  checkpoint.read(piece_of("w", shape, range), "I32", got.data());
  EXPECT_TRUE(got == bytes.substr(4 * 123'456, 4 * 234'567));
}

/// Bytes that this process has asked the system for; nothing where that is not told.
std::optional<int64_t> bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string word;
  int64_t bytes = 0;
  if (file >> word >> bytes && word == "rchar:") return bytes;
  return std::nullopt;
}

TEST(Checkpoint, ReadsOnlyTheBlocksThatHoldSomethingOfThePiece) {
  const Scratch scratch;
  const std::vector<int64_t> shape = {16, 1 << 18};  // 16 blocks, in 2 files
  const std::string bytes = numbered(shape);
  const int64_t half = 8 << 18;
  const std::string folder = save(
      scratch / "c", 1,
      {{"w", {"I32", shape, bytes, {{{0, 0}, shape, 0, half}, {{0, 0}, shape, half, half}}}}}, 2);
  const auto before = bytes_read();
  if (!before) GTEST_SKIP() << "/proc/self/io is not there";
  std::string got(4 * 1000, '\0');
  const BoxRange few{{0, 0}, shape, half + 300'000, 1000};
  Checkpoint(folder).read(piece_of("w", shape, few), "I32", got.data());
  const int64_t after_few = bytes_read().value();
  EXPECT_TRUE(got == bytes.substr(4 * (half + 300'000), 4 * 1000));
  EXPECT_LE(after_few - *before, 3 * kBlockBytes) << "the header's block, one or two of the data";
  // Three ranks of another mesh together read everything about once.
  for (int64_t rank = 0; rank < 3; ++rank) {
    const int64_t begin = 16 * rank / 3, end = 16 * (rank + 1) / 3;
    const BoxRange rows{{begin, 0}, {end - begin, 1 << 18}, 0, (end - begin) << 18};
    got.resize(static_cast<size_t>(4 * rows.count));
    Checkpoint(folder).read(piece_of("w", shape, rows), "I32", got.data());
    EXPECT_TRUE(got == bytes.substr(static_cast<size_t>(4 * begin << 18), got.size()));
  }
  EXPECT_LE(bytes_read().value() - after_few, (16 + 3 * 3) * kBlockBytes);
}

TEST(Checkpoint, ClosesFilesThatItHasNotUsedForLong) {
  const Scratch scratch;
  const std::vector<int64_t> shape = {static_cast<int64_t>(2 * Checkpoint::kMostOpen)};
  const std::string bytes = numbered(shape);
  std::vector<BoxRange> pieces;
  for (int64_t i = 0; i < shape[0]; ++i) pieces.push_back({{0}, shape, i, 1});
  Checkpoint checkpoint(
      save(scratch / "c", 1, {{"w", {"I32", shape, bytes, pieces}}}, static_cast<int>(shape[0])));
  std::string got(bytes.size(), '\0');
  for (int round = 0; round < 2; ++round)
    checkpoint.read(whole_piece("w", shape), "I32", got.data());
  EXPECT_EQ(got, bytes);
  const std::filesystem::directory_iterator open("/proc/self/fd");
  EXPECT_LT(std::distance(open, {}), static_cast<ptrdiff_t>(Checkpoint::kMostOpen) + 20);
}

TEST(Checkpoint, SaysWhatItHasAndWhatWasWanted) {
  const Scratch scratch;
  const std::vector<int64_t> shape = {2, 3};
  Checkpoint checkpoint(
      save(scratch / "c", 5, {{"w", {"I32", shape, numbered(shape), {whole_region(shape)}}}}));
  std::string room(100, '\0');
  const auto read = [&](const std::string& name, std::vector<int64_t> as, const char* dtype) {
    return sentence_of<ConfigError>(
        [&] { checkpoint.read(whole_piece(name, as), dtype, room.data()); });
  };
  EXPECT_THAT(read("v", {2, 3}, "I32"), HasSubstr("no tensor 'v'"));
  EXPECT_THAT(read("w", {3, 2}, "I32"), HasSubstr("'w' as [2, 3], but [3, 2] is wanted"));
  EXPECT_THAT(read("w", {2, 3}, "F32"), HasSubstr("'w' as I32, but F32 is wanted"));
  Piece outside = whole_piece("w", shape);
  outside.begin = 1;
  EXPECT_THROW(checkpoint.read(outside, "I32", room.data()), MisuseError);
  EXPECT_THROW(Checkpoint(scratch / "none"), CheckpointError);
}

/// Two tensors in two files, each of more than a block.
struct Damaged : testing::Test {
  Scratch scratch;
  std::vector<int64_t> shape = {600'000};
  std::string bytes = numbered(shape);
  std::string folder = save(scratch / "c", 1,
                            {{"a", {"I32", shape, bytes, {whole_region(shape)}}},
                             {"b", {"I32", shape, bytes, {whole_region(shape)}}}},
                            2);

  void flip(const std::string& file, size_t at) {
    std::string text = bytes_of(folder + "/" + file);
    ASSERT_LT(at, text.size());
    text[at] = static_cast<char>(text[at] ^ 1);
    put_bytes(folder + "/" + file, text);
  }
  std::string reading(const std::string& name) {
    return outcome_of<CheckpointError>([&] {
      Checkpoint checkpoint(folder);
      std::string room(bytes.size(), '\0');
      checkpoint.read(whole_piece(name, shape), "I32", room.data());
    });
  }
};

using CheckpointDamage = Damaged;

TEST_F(CheckpointDamage, AFlippedByteAnywhereIsFoundAndNamed) {
  const size_t size = bytes_of(folder + "/pieces-1.safetensors").size();
  for (const size_t at : {size_t{0}, size_t{7}, size_t{8}, size_t{40}, size_t{200}, size_t{1} << 20,
                          size / 2, size - 1}) {
    flip("pieces-1.safetensors", at);
    EXPECT_THAT(reading("b"),
                HasSubstr("pieces-1.safetensors is damaged: block " + std::to_string(at >> 20)))
        << at;
    EXPECT_EQ(reading("a"), test::kNothingThrown);
    const auto found = find_damage(folder);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].file, "pieces-1.safetensors");
    EXPECT_EQ(found[0].block, static_cast<int64_t>(at >> 20));
    EXPECT_EQ(found[0].tensors, std::vector<std::string>{"b"});
    flip("pieces-1.safetensors", at);
  }
  EXPECT_TRUE(find_damage(folder).empty());
  EXPECT_EQ(reading("b"), test::kNothingThrown);
}

TEST_F(CheckpointDamage, NoFlippedByteOfTheIndexPasses) {
  const std::string index = bytes_of(folder + "/index.json");
  const Index truth = from_text(index, "index.json");
  for (size_t at = 0; at < index.size(); ++at) {
    std::string text = index;
    text[at] = static_cast<char>(text[at] ^ 1);
    try {
      EXPECT_EQ(from_text(text, "index.json"), truth) << "byte " << at;
    } catch (const CheckpointError&) {
    }
  }
}

TEST_F(CheckpointDamage, ACutOrMissingFileIsFound) {
  const std::string path = folder + "/pieces-0.safetensors", whole = bytes_of(path);
  for (const size_t length :
       {size_t{0}, size_t{5}, size_t{100}, size_t{1} << 20, whole.size() - 1}) {
    put_bytes(path, whole.substr(0, length));
    EXPECT_THAT(reading("a"), HasSubstr("cut off"));
    ASSERT_EQ(find_damage(folder).size(), 1u);
    EXPECT_EQ(find_damage(folder)[0].tensors, std::vector<std::string>{"a"});
  }
  std::filesystem::remove(path);
  EXPECT_THAT(reading("a"), HasSubstr("No such file"));
  EXPECT_EQ(find_damage(folder).size(), 1u);
  std::filesystem::remove(folder + "/index.json");
  EXPECT_EQ(find_damage(folder).size(), 1u);
}

TEST_F(CheckpointDamage, AnEntryThatIsNotWhatTheIndexSaysIsRefused) {
  Index index = read_index(folder);
  index.tensors.at("a").pieces[0].key = "b#0";
  write_file(folder + "/index.json", to_text(index));
  EXPECT_THAT(reading("a"), HasSubstr("'b#0' should be 600000 elements of I32 of tensor 'a'"));
  EXPECT_EQ(find_damage(folder).size(), 1u);
}

}  // namespace
}  // namespace trireme::format
