#pragma once

#include <array>

#include "trireme/data/dataset.h"

namespace trireme::data {

struct MarkovOptions {
  int64_t vocab = 256, seq = 128, samples = 8192;
  uint64_t seed = 1;
  int64_t first_text = 0;  ///< sample i is text first_text + i of the language
};

/// A generated language whose entropy is known. A token's class is its number modulo 16; the class
/// of the next token depends on the classes of the last two, and the token within its class follows
/// Zipf's law. Each sample is a text of its own, which starts in the stationary state.
class Markov : public Dataset {
 public:
  static constexpr int kClasses = 16;

  explicit Markov(MarkovOptions options);
  int64_t size() const override { return options_.samples; }
  Sample get(int64_t index) const override;  ///< int64 [seq], and the same shifted by one token
  std::string identity() const override;
  /// The entropy rate: of a token given all before it, in the stationary state.
  std::optional<double> floor() const override { return entropy_; }

  /// `count` tokens of text `index`.
  void write(int64_t index, int64_t count, int64_t* tokens) const;

  /// The chance of class `next` after classes `before` and `last`.
  double chance(int before, int last, int next) const {
    return table_[context(before, last)][static_cast<std::size_t>(next)];
  }
  /// The chance that token `token` is the next, given its class.
  double chance_in_class(int64_t token) const;

 private:
  using Row = std::array<double, kClasses>;
  static std::size_t context(int before, int last) {
    return static_cast<std::size_t>(before * kClasses + last);
  }
  int64_t tokens_in(int k) const { return (options_.vocab - k + kClasses - 1) / kClasses; }
  void make_stationary();
  void make_entropy();

  MarkovOptions options_;
  int classes_;
  std::array<Row, kClasses * kClasses> table_{}, running_{};  // chances, and their running sums
  std::array<double, kClasses * kClasses> stationary_{};
  std::array<std::vector<double>, kClasses> running_in_class_;
  double entropy_ = 0;
};

}  // namespace trireme::data
