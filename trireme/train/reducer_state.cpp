#include "trireme/train/reducer_state.h"

#include <algorithm>

#include "trireme/comm/texts.h"
#include "trireme/train/saved_residuals.h"

namespace trireme::train {

namespace {

const std::string kPrefix = "reducer/";

/// Is this rank the first of those that sum a parameter's gradient, also among tied stages?
bool is_first(const parallel::ReducerState& state, const parallel::Attached& attached) {
  const Mesh& mesh = attached.mesh();
  const auto is_first_of = [&](const RankSet& set) {
    return set.holders.empty() || position_in(set, mesh.coord(), mesh.degrees()).index == 0;
  };
  const auto& shards = attached.shards();
  const auto own =
      std::ranges::find(shards, state.parameter, [](const auto& one) { return one.name; });
  return state.first &&
         (own == shards.end() || std::ranges::all_of(own->reductions.front().later, is_first_of));
}

}  // namespace

void add_reducer(checkpoint::State& state, parallel::Attached& attached) {
  parallel::Reducer& reducer = attached.reducer();
  for (const parallel::ReducerState& one : reducer.states()) {
    checkpoint::Item item = checkpoint::whole(name_of(kPrefix, one, attached.mesh()), one.tensor);
    item.same = {};
    item.optional = true;
    state.items.push_back(std::move(item));
  }
  const core::Json mine = reducer.state();
  if (mine.is_null()) return;  // on all ranks or on none
  core::Json ranks = core::Json::array();
  for (const std::string& text : comm::all_gather_texts(attached.mesh().world(), mine.dump()))
    ranks.push_back(core::parse_json(text, "what a rank's reducer keeps"));
  state.extra["reducer"] = ranks;
}

void restore_reducer(parallel::Attached& attached, format::Checkpoint& saved) {
  const core::Json& extra = saved.index().extra;
  const Mesh& mesh = attached.mesh();
  if (!extra.contains("reducer")) return;
  const core::Json& ranks = extra.at("reducer");
  // The same degrees with other stages are another mesh, too.
  const auto cut_of = [](const core::Json& of) { return of.value("pipeline_cut", core::Json()); };
  if (extra.value("bucket_mesh", "") == to_string(mesh.degrees()) &&
      cut_of(extra) == cut_of(attached.state()))
    return attached.reducer().restore(ranks.at(static_cast<std::size_t>(mesh.world().rank())));
  core::Json common = ranks.at(0);
  common.erase("chosen");
  attached.reducer().restore(common);
  SavedResiduals residuals(saved);
  residuals.take(kPrefix);
  residuals.put(attached.reducer().states(),
                [&](const parallel::ReducerState& one) { return is_first(one, attached); });
}

}  // namespace trireme::train
