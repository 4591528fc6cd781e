// A rank that shares sequences reads its positions of a row, and knows where documents begin.
#include "trireme/data/token_row.h"

#include <gmock/gmock.h>

#include <torch/torch.h>

#include <random>

#include "support/scratch.h"
#include "support/sentence.h"
#include "trireme/core/error.h"
#include "trireme/data/blend.h"
#include "trireme/data/tokens.h"
#include "trireme/format/tokens.h"

namespace trireme::test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSeq = 21, kEnd = 3;

std::string write_random(const Scratch& folder, int64_t count, int most) {
  std::mt19937 random(2);
  std::vector<uint16_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<uint16_t>(std::uniform_int_distribution(0, most)(random)));
  const std::string path = folder / "tokens.bin";
  format::write_tokens(path, format::TokenKind::Raw, tokens);
  return path;
}

at::Tensor columns_of(const at::Tensor& x, const Positions& positions) {
  return x.index_select(0, at::tensor(positions.each(), at::kLong));
}

TEST(TokenRow, OfARankIsItsPartOfTheWholeRow) {
  const Scratch folder;
  const auto file =
      std::make_shared<const data::Tokens>(write_random(folder, 400, 9), kSeq, 10, kEnd);
  const auto blend = std::make_shared<const data::Blend>(
      std::vector<data::Blend::Source>{{file, 2}, {file, 1}}, 7);
  for (const std::shared_ptr<const data::Dataset>& all :
       {std::shared_ptr<const data::Dataset>(file), std::shared_ptr<const data::Dataset>(blend)}) {
    for (const int size : {1, 2, 3, 4}) {
      for (int rank = 0; rank < size; ++rank) {
        const Positions mine = head_and_tail(kSeq, size, rank);
        const data::PositionsOf part(all, mine);
        EXPECT_EQ(part.size(), all->size());
        for (int64_t i = 0; i < all->size(); ++i) {
          const data::Sample got = part.get_in_epoch(i, 1), whole = all->get_in_epoch(i, 1);
          EXPECT_TRUE(got.input.equal(columns_of(whole.input, mine)));
          EXPECT_TRUE(got.target.equal(columns_of(whole.target, mine)));
          EXPECT_TRUE(got.documents.equal(columns_of(whole.documents, mine)));
        }
      }
    }
  }
}

TEST(TokenRow, SaysWhereTheDocumentOfEachPositionBegins) {
  const std::vector<int64_t> row = {5, kEnd, 1, 2, kEnd, kEnd, 4, 4, 0};
  const data::ReadTokens read = [&](int64_t begin, int64_t count, int64_t* to) {
    std::copy_n(row.begin() + begin, count, to);
  };
  const data::Sample sample = data::read_row(read, {{{0, 8}}, 8}, kEnd);
  EXPECT_TRUE(sample.documents.equal(torch::tensor({0, 0, 2, 2, 2, 5, 6, 6})));
  EXPECT_FALSE(data::read_row(read, {{{0, 8}}, 8}, std::nullopt).documents.defined());
}

TEST(TokenRow, ReadsNothingElseOfARow) {
  std::vector<Range> reads;
  const data::ReadTokens read = [&](int64_t begin, int64_t count, int64_t* to) {
    reads.push_back({begin, count});
    std::fill_n(to, count, 1);
  };
  (void)data::read_row(read, head_and_tail(4096, 4, 1), std::nullopt);
  EXPECT_EQ(reads, (std::vector<Range>{{512, 513}, {3072, 513}}));
}

TEST(TokenRow, RefusesAFileWithoutEndsOfDocuments) {
  const Scratch folder;
  const std::string path = write_random(folder, 400, 9);
  EXPECT_THAT(sentence_of<Error>([&] { data::Tokens(path, kSeq, 20, 12); }),
              HasSubstr("none of its 400 tokens is 12, which should end documents; set data.eod"));
}

TEST(TokenRow, RefusesSamplesOfAnotherLength) {
  const Scratch folder;
  const auto all = std::make_shared<const data::Tokens>(write_random(folder, 400, 9), kSeq, 10);
  struct Own : data::Dataset {
    int64_t size() const override { return 1; }
    data::Sample get(int64_t) const override { return {torch::zeros({5}), torch::zeros({5})}; }
  };
  const data::PositionsOf part(std::make_shared<Own>(), head_and_tail(6, 2, 0));
  EXPECT_THAT(sentence_of<MisuseError>([&] { part.get(0); }),
              HasSubstr("has 5 positions, but its sequences are cut as ones of 6"));
}

}  // namespace
}  // namespace trireme::test
