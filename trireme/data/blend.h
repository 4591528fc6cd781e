#pragma once

#include <memory>
#include <vector>

#include "trireme/data/dataset.h"
#include "trireme/data/order.h"

namespace trireme::data {

/// Which source gives the sample at a position, and how often that source was used before: a
/// function of the weights and the position alone, so that a run resumes anywhere.
///
/// Of the first n positions, two sources get n x share each, rounded to the nearest whole number,
/// so that neither is ever off by more than 1/2. More sources are a tree of such pairs: the two
/// lightest are joined first, and are one source from then on (Huffman 1952).
///
///     weights 5 : 2 : 1              position      0 1 2 3 4 5 6 7 | 8 9 ...
///            8                       a             a   a a   a   a | a
///         +--+--+                    the pair        .     .   .   |   .
///        a:5    3                    is b or c       b     c   b   |   b
///            +--+--+
///           b:2   c:1
///
/// A pair's rounding reaches the sources below it in proportion to their share. The shares of a
/// Huffman tree fall so fast that no source is off by 1.7 samples or more, however many there are;
/// after a whole period (here 8) all are exact. To take the source with the largest deficit each
/// time would be off by less than 1, but only who has counted from the beginning can do that.
class BlendRule {
 public:
  explicit BlendRule(const std::vector<double>& weights);

  struct Turn {
    std::size_t source = 0;
    int64_t use = 0;  ///< how many positions before this one are of the same source
  };
  Turn turn_at(int64_t position) const;
  /// How many of the first `count` positions are of each source.
  std::vector<int64_t> uses(int64_t count) const;

 private:
  struct Node {
    uint64_t weight = 0;
    std::size_t left = 0, right = 0;  ///< the heavier and the lighter of a pair
  };
  bool is_source(std::size_t node) const { return node < sources_; }
  /// How many of a pair's first `count` positions are of its left node.
  int64_t left_of(const Node& pair, int64_t count) const;

  std::size_t sources_;
  std::vector<Node> nodes_;  ///< the sources first, the root last
};

/// Several sources of samples of one form, mixed by weight. Sample i of epoch e is that at position
/// e x size() + i of the rule; a source gives its samples in a new random order each time it has
/// been used up, whatever the epoch of the blend. An epoch has as many samples as the sources
/// together.
class Blend : public Dataset {
 public:
  struct Source {
    std::shared_ptr<const Dataset> data;
    double weight = 1;
  };
  Blend(std::vector<Source> sources, uint64_t seed);
  int64_t size() const override { return size_; }
  Sample get(int64_t index) const override { return get_in_epoch(index, 0); }
  Sample get_in_epoch(int64_t index, int64_t epoch) const override;
  Sample get_positions(int64_t index, std::optional<int64_t> epoch,
                       const Positions& positions) const override;
  bool is_shuffled() const override { return true; }
  std::string identity() const override;
  /// The mean of the sources', by weight; nothing if one of them has none.
  std::optional<double> floor() const override;

  struct Place {
    std::size_t source = 0;
    int64_t index = 0, epoch = 0;  ///< of that source
    bool operator==(const Place&) const = default;
  };
  Place place_of(int64_t index, int64_t epoch) const;

 private:
  std::vector<Source> sources_;
  std::vector<Order> orders_;
  BlendRule rule_;
  int64_t size_ = 0;
};

}  // namespace trireme::data
