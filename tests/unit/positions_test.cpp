// Which positions of a sequence a rank has.
#include "trireme/layout/positions.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/sentence.h"
#include "trireme/core/error.h"

namespace trireme::test {
namespace {

TEST(Positions, OfTheRanksOfAContextAreAllPositionsOnceInPiecesOfHeadAndTail) {
  for (int64_t whole = 0; whole < 20; ++whole) {
    for (int size = 1; size <= 5; ++size) {
      std::vector<int64_t> all;
      for (int rank = 0; rank < size; ++rank) {
        const Positions mine = head_and_tail(whole, size, rank);
        EXPECT_EQ(mine.whole(), whole);
        const auto each = mine.each();
        EXPECT_TRUE(std::ranges::is_sorted(each));
        EXPECT_EQ(static_cast<int64_t>(each.size()), mine.count());
        EXPECT_LE(mine.ranges().size(), 2u);
        all.insert(all.end(), each.begin(), each.end());
      }
      std::ranges::sort(all);
      ASSERT_EQ(static_cast<int64_t>(all.size()), whole);
      for (int64_t i = 0; i < whole; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)], i);
    }
  }
  EXPECT_EQ(head_and_tail(16, 2, 0).ranges(), (std::vector<Range>{{0, 4}, {12, 4}}));
  EXPECT_EQ(head_and_tail(16, 2, 1).ranges(), (std::vector<Range>{{4, 8}}));
}

// A position sees itself and those before it: the work of a rank is the sum of its positions.
TEST(Positions, CostRanksTheSameInCausalAttention) {
  for (const int size : {2, 3, 4, 8}) {
    double most = 0, sum = 0;
    for (int rank = 0; rank < size; ++rank) {
      double work = 0;
      for (const int64_t one : head_and_tail(4096, size, rank).each())
        work += static_cast<double>(one + 1);
      most = std::max(most, work);
      sum += work;
    }
    EXPECT_LE(most / (sum / size), 1.001) << size;
  }
}

TEST(Positions, AreNarrowedToSomeColumns) {
  const Positions mine({{2, 3}, {9, 4}}, 20);
  EXPECT_EQ(mine.narrow({0, 7}), mine);
  EXPECT_EQ(mine.narrow({1, 4}).ranges(), (std::vector<Range>{{3, 2}, {9, 2}}));
  EXPECT_EQ(mine.narrow({3, 2}).each(), (std::vector<int64_t>{9, 10}));
  EXPECT_EQ(mine.narrow({5, 0}).count(), 0);
  EXPECT_EQ(to_string(mine), "2-4, 9-12 of 20");
}

TEST(Positions, ThatAreOpenAreAsManyAsATensorHas) {
  EXPECT_EQ(Positions().ranges(3), (std::vector<Range>{{0, 3}}));
  EXPECT_EQ(Positions::from(5).of(2).each(), (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(Positions::from(5).of(2).whole(), 7);
  EXPECT_TRUE(Positions::from(5).is_open());
}

TEST(Positions, RefuseWhatIsNotInTheSequence) {
  EXPECT_THROW(Positions({{3, 2}, {4, 1}}, 10), MisuseError);
  EXPECT_THROW(Positions({{3, 8}}, 10), MisuseError);
  EXPECT_THROW((void)Positions({{3, 2}}, 10).of(3), MisuseError);
}

}  // namespace
}  // namespace trireme::test
