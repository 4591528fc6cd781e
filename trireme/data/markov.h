#pragma once

#include <vector>

#include "trireme/data/dataset.h"

namespace trireme::data {

struct MarkovOptions {
  int64_t vocab = 256, seq = 128, samples = 8192;
  uint64_t seed = 1;
  int64_t first_text = 0;  ///< sample i is text first_text + i of the language
  int64_t classes = 16;    ///< of tokens; at most `vocab` of them are used
};

/// A generated language whose entropy is known. A token's class is its number modulo `classes`; the
/// class of the next token depends on the classes of the last two, and the token within its class
/// follows Zipf's law. Each sample is a text of its own, which starts in the stationary state.
///
/// How the last class and the one before it act together is a table of classes^3 random numbers,
/// which a model has to memorise: 4096 of them by default, and 64 times as many for 64 classes.
class Markov : public Dataset {
 public:
  static constexpr int64_t kMostClasses = 128;

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
    return table_[context(before, last) * static_cast<std::size_t>(classes_) +
                  static_cast<std::size_t>(next)];
  }
  /// The chance that token `token` is the next, given its class.
  double chance_in_class(int64_t token) const;

 private:
  std::size_t context(int before, int last) const {
    return static_cast<std::size_t>(before * classes_ + last);
  }
  int64_t tokens_in(int k) const { return (options_.vocab - k + classes_ - 1) / classes_; }
  void make_stationary();
  void make_entropy();

  MarkovOptions options_;
  int classes_;
  std::vector<double> table_, running_;  // chances of each context, and their running sums
  std::vector<double> stationary_;       // of the contexts
  std::vector<std::vector<double>> running_in_class_;
  double entropy_ = 0;
};

}  // namespace trireme::data
