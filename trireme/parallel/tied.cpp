#include "trireme/parallel/tied.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <tuple>

#include "trireme/comm/texts.h"
#include "trireme/parallel/precision.h"

namespace trireme::parallel {

namespace {

/// Orders shards by name, and the pieces of one parameter by their offset.
bool comes_before(const ParameterShard& a, const ParameterShard& b) {
  const auto place = [](const ParameterShard& one) {
    return std::tuple(one.name, one.pieces.front().offset, one.pieces.front().begin);
  };
  return place(a) < place(b);
}

}  // namespace

std::map<std::string, Holders> find_tied(const std::vector<ParameterShard>& shards,
                                         const comm::Communicator& pipe) {
  std::string mine;
  for (const ParameterShard& one : shards) mine += one.name + "\n";
  const auto texts = comm::all_gather_texts(pipe, mine);
  std::map<std::string, std::set<int>> holders_of;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream names(texts[rank]);
    for (std::string name; std::getline(names, name);)
      holders_of[name].insert(static_cast<int>(rank));
  }
  std::map<std::string, Holders> tied;
  for (const auto& [name, ranks] : holders_of)
    if (ranks.size() > 1) tied[name] = {ranks.begin(), ranks.end()};
  return tied;
}

void set_holders(ParameterShard& shard, const nn::Parameter& parameter, const Holders& holders,
                 const Mesh& mesh, const Policy& policy) {
  auto all = reductions_of(parameter.layout, holders, mesh.degrees(), mesh.coord(), policy,
                           dtypes_of(parameter, policy.precision));
  if (shard.sharded) all = {all[shard.box]};
  shard.reductions = std::move(all);
}

void broadcast_tied(const std::vector<ParameterShard>& shards,
                    const std::map<std::string, Holders>& tied, const comm::Communicator& pipe,
                    Reducer& reducer) {
  const at::NoGradGuard guard;
  std::set<Holders> sets;  // in the same order on every rank: making a group is collective
  for (const auto& [name, holders] : tied) sets.insert(holders);
  for (const Holders& holders : sets) {
    const comm::Communicator& group = reducer.group({.holders = holders});
    if (std::ranges::find(holders, pipe.rank()) == holders.end()) continue;
    std::vector<ParameterShard> some;
    for (const ParameterShard& one : shards) {
      const auto found = tied.find(one.name);
      if (found != tied.end() && found->second == holders && !one.pieces.empty())
        some.push_back(one);
    }
    std::sort(some.begin(), some.end(), comes_before);
    for (const ParameterShard& one : some) {
      at::Tensor values = one.master.detach().contiguous();
      group.broadcast(values, 0).wait();
      one.master.detach().copy_(values);
    }
  }
}

}  // namespace trireme::parallel
