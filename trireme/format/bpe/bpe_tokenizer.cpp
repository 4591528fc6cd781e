// From text to tokens:
//
//   text ──added tokens that are looked for as they are──> stretches between them
//        ──normalised, then the other added tokens──────> stretches
//        ──Splitter──> pieces ──bytes, merged by rank──> tokens
#include "trireme/format/bpe/bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/format/bpe/byte_alphabet.h"
#include "trireme/format/bpe/merges.h"
#include "trireme/format/bpe/nfc.h"
#include "trireme/format/bpe/piece_cache.h"
#include "trireme/format/bpe/splitter.h"

namespace trireme::format {

namespace {

constexpr int32_t kMostIds = 1 << 22;

class Bpe : public Tokenizer {
 public:
  explicit Bpe(BpeFacts facts);

  using Tokenizer::encode;
  void encode(std::string_view text, Around around, std::vector<int32_t>& to) const override;
  std::string_view bytes_of(int32_t id) const override {
    return is_token(id) ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(bytes_.size()); }
  std::optional<int32_t> id_of(std::string_view token) const override {
    const auto found = ids_.find(std::string(token));
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  bool is_special(int32_t id) const override {
    return is_token(id) && special_[static_cast<size_t>(id)];
  }
  std::optional<int32_t> end_of_text() const override;
  std::string chat_template() const override { return facts_.chat_template; }
  std::string bos_token() const override { return facts_.bos_token; }
  std::string eos_token() const override { return facts_.eos_token; }
  std::string identity() const override { return identity_; }

 private:
  /// What one call needs to work with. Calls on other threads take another.
  struct State {
    PieceCache cache;
    Merger merger;
    std::vector<int32_t> tokens;
  };

  bool is_token(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < bytes_.size(); }
  template <class... Args>
  void need(bool ok, fmt::format_string<Args...> sentence, Args&&... args) const {
    if (!ok) throw Error(facts_.path + ": " + fmt::format(sentence, std::forward<Args>(args)...));
  }
  void take_vocab();
  void take_added();
  void take_merges();
  void identify();
  void place(int32_t id, std::string bytes, const std::string& name);

  std::unique_ptr<State> borrow() const;
  void give_back(std::unique_ptr<State> state) const;
  void encode_stretch(std::string_view text, State& state, std::vector<int32_t>& to) const;
  void encode_pieces(std::string_view text, State& state, std::vector<int32_t>& to) const;
  std::span<const int32_t> merged(std::string_view piece, State& state) const;

  BpeFacts facts_;
  std::vector<std::string> bytes_;  // by id
  std::vector<bool> special_, taken_;
  std::unordered_map<std::string, int32_t> ids_;            // as the file spells them
  std::unordered_map<std::string_view, int32_t> by_bytes_;  // if merges are ignored
  std::array<int32_t, 256> byte_ids_{};
  std::unique_ptr<const MergeTable> merges_;
  std::unique_ptr<const AddedTokens> raw_, normalised_;
  std::unique_ptr<const Splitter> splitter_;
  std::string identity_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<State>> idle_;
};

Bpe::Bpe(BpeFacts facts) : facts_(std::move(facts)) {
  take_vocab();
  take_merges();
  take_added();
  try {
    splitter_ = make_splitter(facts_.pattern);
  } catch (const Error& error) {
    need(false, "{}", error.what());
  }
  identify();
  facts_.vocab.clear();
  facts_.merges.clear();
}

void Bpe::place(int32_t id, std::string bytes, const std::string& name) {
  need(id >= 0 && id < kMostIds, "token '{}' has id {}, which must be 0 to {}", name, id,
       kMostIds - 1);
  const auto at = static_cast<size_t>(id);
  if (at >= bytes_.size()) {
    bytes_.resize(at + 1);
    special_.resize(at + 1);
    taken_.resize(at + 1);
  }
  need(!taken_[at], "'{}' and '{}' are both token {}", bytes_[at], name, id);
  taken_[at] = true;
  bytes_[at] = std::move(bytes);
}

void Bpe::take_vocab() {
  for (const auto& [name, id] : facts_.vocab) {
    // What is spelled with other characters is a special token, and stands for itself.
    place(id, unspelled(name).value_or(name), name);
    ids_.emplace(name, id);
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto found = ids_.find(spelled(std::string(1, static_cast<char>(byte))));
    need(found != ids_.end(),
         "its vocabulary has no token for byte {}, so texts would be lost; train it with the whole "
         "byte-level alphabet",
         byte);
    byte_ids_[byte] = found->second;
  }
  if (!facts_.ignore_merges) return;
  for (const auto& [name, id] : facts_.vocab)
    if (unspelled(name)) by_bytes_.emplace(bytes_[static_cast<size_t>(id)], id);
}

void Bpe::take_merges() {
  auto table = std::make_unique<MergeTable>(facts_.merges.size());
  for (size_t rank = 0; rank < facts_.merges.size(); ++rank) {
    const std::string &left = facts_.merges[rank].first, &right = facts_.merges[rank].second;
    const auto id = [&](const std::string& name) {
      const auto found = ids_.find(name);
      need(found != ids_.end(), "merge {} is '{} {}', but '{}' is not in the vocabulary", rank,
           left, right, name);
      return found->second;
    };
    table->add(id(left), id(right), {static_cast<uint32_t>(rank), id(left + right)});
  }
  merges_ = std::move(table);
}

void Bpe::take_added() {
  std::vector<AddedToken> raw, normalised;
  for (AddedToken token : facts_.added) {
    const auto known = ids_.find(token.content);
    need(known == ids_.end() || known->second == token.id,
         "the added token '{}' has id {}, but in the vocabulary it is {}", token.content, token.id,
         known == ids_.end() ? 0 : known->second);
    if (known == ids_.end()) {
      place(token.id, token.content, token.content);
      ids_.emplace(token.content, token.id);
    }
    bytes_[static_cast<size_t>(token.id)] = token.content;
    special_[static_cast<size_t>(token.id)] = token.special;
    if (token.normalized && facts_.nfc) token.content = to_nfc(token.content);
    (token.normalized ? normalised : raw).push_back(std::move(token));
  }
  raw_ = std::make_unique<AddedTokens>(std::move(raw));
  normalised_ = std::make_unique<AddedTokens>(std::move(normalised));
  for (const int32_t id : facts_.before)
    need(is_token(id), "its post-processor puts token {} before a text, which is none", id);
  for (const int32_t id : facts_.after)
    need(is_token(id), "its post-processor puts token {} after a text, which is none", id);
}

void Bpe::identify() {
  std::string all =
      fmt::format("{} {} {} {} {}\n", facts_.pattern, facts_.nfc, facts_.ignore_merges,
                  fmt::join(facts_.before, ","), fmt::join(facts_.after, ","));
  for (size_t id = 0; id < bytes_.size(); ++id)
    all += fmt::format("{} {} {}\n", bytes_[id].size(), bytes_[id], int{special_[id]});
  for (const auto& [left, right] : facts_.merges) all += left + ' ' + right + '\n';
  for (const AddedToken& each : facts_.added)
    all += fmt::format("{} {} {} {}\n", each.id, each.normalized, each.lstrip, each.rstrip);
  identity_ =
      fmt::format("byte-level BPE, {} tokens, hash {:016x}", bytes_.size(), core::hash64(all));
}

std::optional<int32_t> Bpe::end_of_text() const {
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
    if (const auto id = id_of(name)) return id;
  return facts_.eos_token.empty() ? std::nullopt : id_of(facts_.eos_token);
}

std::unique_ptr<Bpe::State> Bpe::borrow() const {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<State>();
  auto state = std::move(idle_.back());
  idle_.pop_back();
  return state;
}

void Bpe::give_back(std::unique_ptr<State> state) const {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(state));
}

/// Calls `between` with each stretch between added tokens, and appends these.
template <class Between>
void split_at(const AddedTokens& added, std::string_view text, std::vector<int32_t>& to,
              const Between& between) {
  size_t done = 0;
  for (size_t from = 0;;) {
    const AddedTokens::Found found = added.find(text, from, done);
    if (found.begin > done) between(text.substr(done, found.begin - done));
    if (found.token == nullptr) return;
    to.push_back(found.token->id);
    done = found.end;
    from = found.after;
  }
}

void Bpe::encode(std::string_view text, Around around, std::vector<int32_t>& to) const {
  const bool template_too = around == Around::Template;
  if (template_too) to.insert(to.end(), facts_.before.begin(), facts_.before.end());
  auto state = borrow();
  split_at(*raw_, text, to, [&](std::string_view stretch) { encode_stretch(stretch, *state, to); });
  give_back(std::move(state));
  if (template_too) to.insert(to.end(), facts_.after.begin(), facts_.after.end());
}

void Bpe::encode_stretch(std::string_view text, State& state, std::vector<int32_t>& to) const {
  std::string normal;
  if (facts_.nfc && !surely_nfc(text)) text = normal = to_nfc(text);
  split_at(*normalised_, text, to,
           [&](std::string_view stretch) { encode_pieces(stretch, state, to); });
}

void Bpe::encode_pieces(std::string_view text, State& state, std::vector<int32_t>& to) const {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = splitter_->end_of(text, begin);
    const std::string_view piece = text.substr(begin, end - begin);
    begin = end;
    if (piece.size() > PieceCache::kMostBytes) {
      const auto tokens = merged(piece, state);
      to.insert(to.end(), tokens.begin(), tokens.end());
      continue;
    }
    const PieceCache::Place place = state.cache.find(piece);
    if (place.holds()) {
      const auto* tokens = place.slot->tokens.data();
      to.insert(to.end(), tokens, tokens + place.slot->count);
      continue;
    }
    const auto tokens = merged(piece, state);
    place.put(tokens);
    to.insert(to.end(), tokens.begin(), tokens.end());
  }
}

std::span<const int32_t> Bpe::merged(std::string_view piece, State& state) const {
  if (facts_.ignore_merges)
    if (const auto whole = by_bytes_.find(piece); whole != by_bytes_.end()) {
      state.tokens.assign(1, whole->second);
      return state.tokens;
    }
  state.tokens.clear();
  for (const unsigned char byte : piece) state.tokens.push_back(byte_ids_[byte]);
  return {state.tokens.data(), state.merger.merge(*merges_, state.tokens)};
}

}  // namespace

std::unique_ptr<const Tokenizer> make_bpe_tokenizer(BpeFacts facts) {
  return std::make_unique<Bpe>(std::move(facts));
}

}  // namespace trireme::format
