// What a checkpoint holds of local updates; the rest of them is in local_updates.cpp.
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <set>

#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/parallel/local_updates.h"

namespace trireme::parallel {

namespace {

core::Json numbers_of(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu();
  const auto* data = host.data_ptr<double>();
  return std::vector<double>(data, data + host.numel());
}

at::Tensor tensor_of(const core::Json& numbers, const at::Tensor& like) {
  return at::tensor(numbers.get<std::vector<double>>(), at::kDouble).to(like.device());
}

}  // namespace

std::vector<LocalUpdates::CommonTensor> LocalUpdates::common(Purpose purpose) {
  std::vector<CommonTensor> all;
  const bool loads = purpose == Purpose::Load;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    all.push_back({"", i, start_[i]});
    if (velocity_[i].defined())
      all.push_back({fmt::format("outer/{}/", options_.outer->name()), i, velocity_[i], loads});
  }
  for (Fragment& one : fragments_) {
    if (!loads && !one.flight) continue;
    if (one.flight) wait(one);
    for (std::size_t k = 0; k < one.shards.size(); ++k)
      all.push_back({"outer/under way/", one.shards[k], one.moved[k], loads});
  }
  return all;
}

core::Json LocalUpdates::common_json() {
  core::Json flights = core::Json::array();
  for (std::size_t f = 0; f < fragments_.size(); ++f) {
    const auto& flight = fragments_[f].flight;
    if (!flight) continue;
    wait(fragments_[f]);
    // The squared distance is a sum over the ranks of the replica, of which each has its part.
    at::Tensor totals = flight->totals.clone();
    meshes_.replica.world().all_reduce(totals.narrow(0, kSquares, 1)).wait();
    flights.push_back({{"fragment", f}, {"step", flight->step}, {"totals", numbers_of(totals)}});
  }
  return {{"outer", options_.outer->name()},
          {"rate", rate_},
          {"every", options_.every},
          {"delay", options_.delay},
          {"cut", cut_},
          {"fragment_of", fragment_of_},
          {"flights", flights}};
}

std::vector<ReducerState> LocalUpdates::own_states(Purpose purpose) {
  std::vector<ReducerState> all;
  std::set<std::string> compressed;
  for (Fragment& fragment : fragments_) {
    if (fragment.flight) wait(fragment);
    for (ReducerState& one : fragment.reducer->states()) {
      if (one.piece) compressed.insert(one.parameter + to_text(*one.piece));
      all.push_back(std::move(one));
    }
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const ParameterShard& shard = shards_[i];
    const bool plain = std::ranges::none_of(shard.pieces, [&](const Piece& piece) {
      return compressed.contains(shard.name + to_text(piece));
    });
    if (purpose == Purpose::Load && !unsent_[i].defined() && plain)
      unsent_[i] = at::zeros_like(start_[i]);
    for (std::size_t k = 0; unsent_[i].defined() && k < shard.pieces.size(); ++k)
      all.push_back({.kind = kUnsent,
                     .parameter = shard.name,
                     .tensor = shard.part(unsent_[i], k),
                     .piece = shard.pieces[k]});
  }
  const auto counts = [&](const Piece& piece) {
    for (const ParameterShard& one : shards_)
      for (std::size_t i = 0; i < one.pieces.size(); ++i)
        if (one.pieces[i] == piece) return one.reductions[i].counts;
    return true;
  };
  for (ReducerState& one : all) one.repeats = one.piece && !counts(*one.piece);
  return all;
}

core::Json LocalUpdates::own_json() {
  core::Json counted = core::Json::array(), mine = core::Json::array(), ranks = core::Json::array();
  for (Fragment& one : fragments_) {
    if (one.flight) wait(one);
    counted.push_back(numbers_of(one.counted));
    mine.push_back(one.reducer->state());
  }
  for (const std::string& text : comm::all_gather_texts(meshes_.replica.world(), mine.dump()))
    ranks.push_back(core::parse_json(text, "what a rank has not sent yet"));
  return {{"counted", counted}, {"reducers", ranks}};
}

void LocalUpdates::restore(const core::Json& common, const core::Json& own) {
  const core::Json& counted = own.at("counted");
  rate_ = common.at("rate");
  const bool same_turns = common.at("fragment_of") == core::Json(fragment_of_);
  for (std::size_t f = 0; f < fragments_.size(); ++f) {
    if (fragments_[f].flight) wait(fragments_[f]);
    fragments_[f].flight.reset();
    fragments_[f].counted = tensor_of(counted.at(same_turns ? f : 0), fragments_[f].counted);
  }
  const core::Json& ranks = own.at("reducers");
  const auto rank = static_cast<std::size_t>(meshes_.replica.world().rank());
  for (std::size_t f = 0; is_cut_as(common) && f < fragments_.size(); ++f)
    if (!ranks.at(rank).at(f).is_null()) fragments_[f].reducer->restore(ranks.at(rank).at(f));
  // Sums under way are lost otherwise; what the replicas moved is still in their weights.
  if (!same_turns || common.at("every") != options_.every || common.at("delay") != options_.delay)
    return;
  for (const core::Json& saved : common.at("flights")) {
    Fragment& one = fragments_.at(saved.at("fragment").get<std::size_t>());
    Flight flight{.step = saved.at("step"), .totals = {}, .totals_work = {}};
    flight.totals = tensor_of(saved.at("totals"), one.counted);
    if (rank > 0) flight.totals[kSquares] = 0;
    flight.arrived = true;
    one.flight = std::move(flight);
  }
}

void LocalUpdates::restart_residuals(const core::Json& saved) {
  for (std::size_t f = 0; f < fragments_.size(); ++f) {
    core::Json one = saved.at(std::min(f, saved.size() - 1));  // all have met about as often
    if (one.is_null()) one = core::Json::object();             // it did not compress
    one.erase("chosen");
    one["unit"] = 1;
    fragments_[f].reducer->restore(one);
  }
}

void LocalUpdates::restart_from(const std::vector<at::Tensor>& means,
                                const std::function<Counted(const std::string&)>& counted) {
  const at::NoGradGuard guard;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const Counted since = counted(shards_[i].name);
    if (since.weight > 0)
      options_.outer->advance(start_[i], means[i].to(start_[i].scalar_type()), velocity_[i],
                              since.block);
    shards_[i].master.detach().copy_(start_[i]);
  }
}

void LocalUpdates::clear() {
  const at::NoGradGuard guard;
  for (Fragment& one : fragments_) {
    if (one.flight) wait(one);
    one.flight.reset();
    one.counted.zero_();
    for (const ReducerState& state : one.reducer->states())
      if (state.piece) state.tensor.zero_();
    one.reducer->restore(core::Json::object());
  }
  for (at::Tensor& one : unsent_) one.reset();
  for (const at::Tensor& one : velocity_)
    if (one.defined()) one.zero_();
}

void LocalUpdates::check_same() const {
  for (std::size_t i = 0; i < start_.size(); ++i) {
    const at::Tensor first = start_[i].clone();
    meshes_.meeting.world().broadcast(first, 0).wait();
    if (!first.equal(start_[i]))
      throw Error(
          fmt::format("replica {} has another common '{}' than replica 0: they have drifted apart",
                      meshes_.index(), shards_[i].name));
  }
}

void LocalUpdates::restart() {
  const at::NoGradGuard guard;
  for (std::size_t i = 0; i < shards_.size(); ++i) start_[i].copy_(shards_[i].master.detach());
}

}  // namespace trireme::parallel
