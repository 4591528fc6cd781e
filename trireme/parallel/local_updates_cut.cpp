// Which fragment a parameter meets in, and what of it may be compressed; the rest of local updates
// is in local_updates.cpp.
#include <algorithm>
#include <functional>
#include <numeric>

#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/parallel/local_updates.h"

namespace trireme::parallel {

namespace {

/// A shard that a rank of the replica keeps.
struct KeptShard {
  std::string name;
  int64_t whole_elems = 0;          // of the parameter
  std::vector<std::string> pieces;  // where they lie, and how many elements they have
  bool operator==(const KeptShard&) const = default;
};

/// The shards of every rank of the replica. Collective over it.
std::vector<std::vector<KeptShard>> all_shards(const std::vector<ParameterShard>& own,
                                               const Mesh& replica) {
  core::Json mine = core::Json::array();
  for (const ParameterShard& one : own) {
    std::vector<std::string> pieces;
    for (const Piece& piece : one.pieces)
      pieces.push_back(fmt::format("{}+{}", to_text(piece), piece.count));
    mine.push_back(
        {one.name, one.pieces.empty() ? 0 : Box{{}, one.pieces.front().whole}.numel(), pieces});
  }
  std::vector<std::vector<KeptShard>> ranks;
  for (const std::string& text : comm::all_gather_texts(replica.world(), mine.dump())) {
    ranks.emplace_back();
    for (const core::Json& one : core::parse_json(text, "the parameters of a rank"))
      ranks.back().push_back({one.at(0), one.at(1), one.at(2)});
  }
  return ranks;
}

std::string cut_of(const std::vector<std::vector<KeptShard>>& ranks,
                   const std::map<std::string, std::size_t>& fragment_of,
                   const std::vector<std::string>& reducers) {
  core::Json all = {fragment_of, reducers};
  for (const auto& shards : ranks) {
    all.push_back(core::Json::array());
    for (const KeptShard& one : shards) all.back().push_back({one.name, one.pieces});
  }
  return fmt::format("{:016x}", core::hash64(all.dump()));
}

bool overlap(const KeptShard& one, const std::vector<KeptShard>& others) {
  return std::ranges::any_of(others, [&](const KeptShard& other) {
    return other.name == one.name && std::ranges::any_of(one.pieces, [&](const auto& piece) {
             return std::ranges::find(other.pieces, piece) != other.pieces.end();
           });
  });
}

}  // namespace

/// Consecutive parameters, so that all fragments have about as many elements. All ranks of a
/// replica cut alike, although each has other parameters, or other parts of them: copies of a
/// weight must meet together.
void LocalUpdates::cut_into_fragments() {
  const auto ranks = all_shards(shards_, meshes_.replica);
  std::vector<std::pair<std::string, int64_t>> all;  // in the order of the stages
  for (const auto& shards : ranks)
    for (const KeptShard& one : shards)
      if (std::ranges::find(all, one.name, [](const auto& known) { return known.first; }) ==
          all.end())
        all.emplace_back(one.name, one.whole_elems);
  const auto count = static_cast<std::size_t>(options_.fragments);
  int64_t total = 0, before = 0;
  for (const auto& [name, size] : all) total += size;
  for (const auto& [name, size] : all) {
    const auto middle = static_cast<std::size_t>(before + size / 2);
    fragment_of_[name] =
        std::min(count - 1, total == 0 ? 0 : middle * count / static_cast<std::size_t>(total));
    before += size;
  }
  fragments_.resize(count);
  // Several ranks of a replica may keep the same elements, and each sums them with its own
  // counterparts. What a compressor sends of an element depends on its neighbours in the block: so
  // ranks that keep all the same get the same bits, and others must send what they share as it is.
  const auto& mine = ranks[static_cast<std::size_t>(meshes_.replica.world().rank())];
  const auto is_shared = [&](std::size_t shard) {
    return std::ranges::any_of(
        ranks, [&](const auto& other) { return other != mine && overlap(mine[shard], other); });
  };
  std::vector<std::size_t> order(shards_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto shared = options_.compress.compresses()
                          ? std::ranges::stable_partition(order, std::not_fn(is_shared)).begin()
                          : order.end();
  for (auto one = order.begin(); one != order.end(); ++one) {
    Fragment& fragment = fragments_[fragment_of_.at(shards_[*one].name)];
    fragment.shards.push_back(*one);
    if (one >= shared) ++fragment.num_plain;
  }
  for (std::size_t a = 0; options_.compress.kind == Compression::Auto && a < ranks.size(); ++a)
    for (std::size_t b = a + 1; b < ranks.size(); ++b)
      if (ranks[a] == ranks[b])
        throw ConfigError(fmt::format(
            "compress.kind = \"auto\": ranks {} and {} of a replica keep the same weights, and "
            "each would choose for itself how they travel; name a kind",
            a, b));
  for (Fragment& one : fragments_) lay_out(one);
  core::Json kept = core::Json::array();  // what reducers keep on each rank
  for (const Fragment& one : fragments_)
    for (const ReducerState& state : one.reducer->states())
      kept.push_back({state.kind, state.parameter, state.piece ? to_text(*state.piece) : ""});
  cut_ = cut_of(ranks, fragment_of_, comm::all_gather_texts(meshes_.replica.world(), kept.dump()));
}

}  // namespace trireme::parallel
