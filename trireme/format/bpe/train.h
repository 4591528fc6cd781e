#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme::format {

/// Whose split pattern and normalisation a new tokenizer gets.
enum class Family : uint8_t { Gpt2, Llama3, Qwen };

struct TrainedBpe {
  Family family = Family::Gpt2;
  std::vector<std::string> special, vocab;  ///< by id, as files spell them; special ones first
  std::vector<std::pair<std::string, std::string>> merges;
};

/// Counts the pieces of documents, then merges the pair of tokens that is most frequent, again and
/// again. The same documents in any order give the same tokenizer, which is the one of Hugging
/// Face's BpeTrainer with the whole byte-level alphabet: of equally frequent pairs the one with the
/// lower ids, the left one first, is merged.
class BpeTrainer {
 public:
  explicit BpeTrainer(Family family);

  void add(std::string_view document);
  /// At most `vocab` tokens, fewer if no pairs are left. `progress` is told how many there are.
  TrainedBpe train(int64_t vocab, const std::vector<std::string>& special,
                   const std::function<void(int64_t)>& progress = {}) const;

 private:
  Family family_;
  std::unordered_map<std::string, int64_t> counts_;  // of pieces
};

/// The tokenizer.json of what was trained.
std::string to_tokenizer_json(const TrainedBpe& trained);

}  // namespace trireme::format
