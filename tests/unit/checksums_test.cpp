#include "trireme/format/checksums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "support/scratch.h"
#include "trireme/core/error.h"
#include "trireme/core/hash.h"

namespace trireme::format {
namespace {

using test::put_bytes;
using test::random_bytes;
using test::Scratch;
using test::sentence_of;
using ::testing::HasSubstr;

/// A file of a little over three blocks, and what it must be.
struct Blocks {
  Scratch scratch;
  std::string path = scratch / "blocks", bytes = random_bytes(3 * kBlockBytes + 777, 5);
  FileInfo info;

  Blocks() {
    put_bytes(path, bytes);
    info.bytes = static_cast<int64_t>(bytes.size());
    for (size_t at = 0; at < bytes.size(); at += size_t{kBlockBytes})
      info.checksums.push_back(
          core::hash128_hex(&bytes[at], std::min(size_t{kBlockBytes}, bytes.size() - at)));
  }
};

TEST(Checksums, AnyRangeReadsAsTheFileIs) {
  Blocks blocks;
  VerifiedFile file(blocks.path, blocks.info);
  std::mt19937 random(3);
  const auto pick = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1));
  };
  for (int round = 0; round < 200; ++round) {
    int64_t begin = pick(file.bytes()), end = begin + pick(file.bytes() - begin);
    if (round % 3 == 0) begin = begin / kBlockBytes * kBlockBytes;
    if (round % 4 == 0) end = file.bytes();
    std::string got(static_cast<size_t>(end - begin), '\0');
    file.read(begin, end - begin, got.data(), "w");
    ASSERT_EQ(got, blocks.bytes.substr(static_cast<size_t>(begin), got.size()));
  }
  EXPECT_THROW(file.read(file.bytes(), 1, nullptr, "w"), MisuseError);
}

TEST(Checksums, OnlyReadsThatTouchTheDamagedBlockFail) {
  Blocks blocks;
  const auto place = size_t{kBlockBytes} * 2 + 17;
  blocks.bytes[place] = static_cast<char>(blocks.bytes[place] ^ 4);
  put_bytes(blocks.path, blocks.bytes);
  std::string got(blocks.bytes.size(), '\0');
  VerifiedFile file(blocks.path, blocks.info);
  file.read(0, 2 * kBlockBytes, got.data(), "w");
  file.read(3 * kBlockBytes, 777, got.data(), "w");
  EXPECT_EQ(file.damaged_blocks(), std::vector<int64_t>{2});
  for (const auto& [offset, bytes] : {std::pair<int64_t, int64_t>{2 * kBlockBytes + 900, 1},
                                      {0, file.bytes()},
                                      {2 * kBlockBytes, kBlockBytes}}) {
    const std::string message = sentence_of<CheckpointError>(
        [&, at = offset, count = bytes] { file.read(at, count, got.data(), "layer.3.weight"); });
    EXPECT_THAT(message, HasSubstr(blocks.path + " is damaged: block 2 "));
    EXPECT_THAT(message, HasSubstr("layer.3.weight"));
  }
}

TEST(Checksums, AnotherSizeIsRefusedAtOnce) {
  Blocks blocks;
  put_bytes(blocks.path, blocks.bytes.substr(1));
  EXPECT_THAT(sentence_of<CheckpointError>([&] { VerifiedFile(blocks.path, blocks.info); }),
              HasSubstr("cut off"));
  blocks.info.checksums.pop_back();
  EXPECT_THROW(VerifiedFile(blocks.path, blocks.info), CheckpointError);
}

}  // namespace
}  // namespace trireme::format
