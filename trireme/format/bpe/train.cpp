// Each round takes the most frequent pair, merges it in the pieces that have it, and counts the
// pairs that this makes and breaks:
//
//   piece  l o w e r  x 5        (e r) is most frequent: er becomes a token
//          l o w er   x 5        (w e) -5, (w er) +5
//
// A queue holds candidates: a pair, its count, and the pieces that have had it. A count may be out
// of date when its turn comes; then it is put back with the present one.
#include "trireme/format/bpe/train.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <queue>

#include "trireme/core/error.h"
#include "trireme/format/bpe/byte_alphabet.h"
#include "trireme/format/bpe/nfc.h"
#include "trireme/format/bpe/splitter.h"

namespace trireme::format {

namespace {

std::unique_ptr<const Splitter> splitter_of(Family family) {
  if (family == Family::Gpt2) return make_gpt2_splitter();
  return make_llama3_splitter(family == Family::Llama3 ? 3 : 1);
}

using Pair = std::pair<int32_t, int32_t>;

uint64_t key_of(Pair pair) {
  return uint64_t{static_cast<uint32_t>(pair.first)} << 32 | static_cast<uint32_t>(pair.second);
}

struct CountedPiece {
  std::vector<int32_t> tokens;
  int64_t count;
};

struct Candidate {
  Pair pair;
  int64_t count;
  std::vector<uint32_t> pieces;

  /// The lowest of a queue, which gives the highest first.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Training {
 public:
  Training(TrainedBpe& trained, const std::unordered_map<std::string, int64_t>& counts)
      : trained_(trained) {
    for (const std::string& each : trained.special) id_of(each);
    add_alphabet();
    for (const auto& [text, count] : counts) {
      CountedPiece piece{{}, count};
      for (const unsigned char byte : text) piece.tokens.push_back(bytes_[byte]);
      pieces_.push_back(std::move(piece));
    }
    for (uint32_t i = 0; i < pieces_.size(); ++i)
      for (size_t at = 0; at + 1 < pieces_[i].tokens.size(); ++at)
        change({pieces_[i].tokens[at], pieces_[i].tokens[at + 1]}, 1, i);
    push_changed();
  }

  /// Whether there was a pair to merge.
  bool round() {
    while (!queue_.empty()) {
      Candidate top = queue_.top();
      queue_.pop();
      if (const int64_t now = pairs_[key_of(top.pair)]; top.count != now) {
        top.count = now;
        if (now > 0) queue_.push(std::move(top));
        continue;
      }
      merge(top);
      return true;
    }
    return false;
  }

 private:
  int32_t id_of(const std::string& name) {
    const auto [place, is_new] =
        ids_.try_emplace(name, static_cast<int32_t>(trained_.vocab.size()));
    if (is_new) trained_.vocab.push_back(name);
    return place->second;
  }

  /// Bytes have ids in the order of the characters that spell them.
  void add_alphabet() {
    std::vector<std::pair<std::string, unsigned char>> all;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const auto each = static_cast<unsigned char>(byte);
      all.emplace_back(spelled(std::string(1, static_cast<char>(each))), each);
    }
    std::ranges::sort(all);  // the order of UTF-8 is that of the code points
    for (const auto& [name, byte] : all) bytes_[byte] = id_of(name);
  }

  void change(Pair pair, int64_t by, uint32_t piece) {
    pairs_[key_of(pair)] += by * pieces_[piece].count;
    if (by < 0) return;
    auto& where = changed_[pair];
    if (where.empty() || where.back() != piece) where.push_back(piece);
  }

  void push_changed() {
    for (auto& [pair, where] : changed_)
      if (const int64_t count = pairs_[key_of(pair)]; count > 0)
        queue_.push({pair, count, std::move(where)});
    changed_.clear();
  }

  void merge(const Candidate& top) {
    const std::string &left = trained_.vocab[static_cast<size_t>(top.pair.first)],
                      &right = trained_.vocab[static_cast<size_t>(top.pair.second)];
    trained_.merges.emplace_back(left, right);
    const int32_t both = id_of(left + right);
    for (const uint32_t piece : top.pieces) merge_in(piece, top.pair, both);
    push_changed();
  }

  void merge_in(uint32_t piece, Pair pair, int32_t both) {
    auto& tokens = pieces_[piece].tokens;
    size_t kept = 0;
    for (size_t at = 0; at < tokens.size(); ++at) {
      const bool here = at + 1 < tokens.size() && Pair{tokens[at], tokens[at + 1]} == pair;
      if (!here) {
        tokens[kept++] = tokens[at];
        continue;
      }
      if (kept > 0) {
        change({tokens[kept - 1], pair.first}, -1, piece);
        change({tokens[kept - 1], both}, 1, piece);
      }
      tokens[kept++] = both;
      ++at;
      if (at + 1 < tokens.size()) {
        change({pair.second, tokens[at + 1]}, -1, piece);
        change({both, tokens[at + 1]}, 1, piece);
      }
    }
    tokens.resize(kept);
  }

  TrainedBpe& trained_;
  std::array<int32_t, 256> bytes_{};
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<CountedPiece> pieces_;
  std::unordered_map<uint64_t, int64_t> pairs_;    // how often each pair is there
  std::map<Pair, std::vector<uint32_t>> changed_;  // pairs that came, and in which pieces
  std::priority_queue<Candidate> queue_;
};

}  // namespace

BpeTrainer::BpeTrainer(Family family) : family_(family) {}

void BpeTrainer::add(std::string_view document) {
  const auto splitter = splitter_of(family_);
  std::string normal;
  if (family_ == Family::Qwen && !surely_nfc(document)) document = normal = to_nfc(document);
  for (size_t begin = 0; begin < document.size();) {
    const size_t end = splitter->end_of(document, begin);
    ++counts_[std::string(document.substr(begin, end - begin))];
    begin = end;
  }
}

TrainedBpe BpeTrainer::train(int64_t vocab, const std::vector<std::string>& special,
                             const std::function<void(int64_t)>& progress) const {
  const auto least = static_cast<int64_t>(special.size()) + 256;
  if (vocab < least)
    throw Error(fmt::format("a vocabulary of {} has no place for 256 bytes and {} special tokens",
                            vocab, special.size()));
  TrainedBpe trained;
  trained.family = family_;
  trained.special = special;
  Training training(trained, counts_);
  while (static_cast<int64_t>(trained.vocab.size()) < vocab && training.round())
    if (progress) progress(static_cast<int64_t>(trained.vocab.size()));
  return trained;
}

}  // namespace trireme::format
