// What a checkpoint holds of local updates; the rest of them is in local_updates.cpp.
#include <ATen/ops/tensor.h>

#include "trireme/comm/texts.h"
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
    if (one.flight) wait(*one.flight);
    for (std::size_t k = 0; k < one.shards.size(); ++k)
      all.push_back({"outer/under way/", one.shards[k], one.moved[k], loads});
  }
  return all;
}

core::Json LocalUpdates::common_json() {
  core::Json flights = core::Json::array();
  for (std::size_t f = 0; f < fragments_.size(); ++f) {
    auto& flight = fragments_[f].flight;
    if (!flight) continue;
    wait(*flight);
    flights.push_back({{"fragment", f},
                       {"step", flight->step},
                       {"rate", flight->rate},
                       {"totals", numbers_of(flight->totals)}});
  }
  return {{"outer", options_.outer->name()}, {"rate", rate_}, {"flights", flights}};
}

std::vector<LocalUpdates::OwnTensor> LocalUpdates::own_tensors() {
  std::vector<OwnTensor> all;
  for (std::size_t f = 0; f < fragments_.size(); ++f)
    for (const ReducerState& one : fragments_[f].reducer->states())
      all.push_back(
          {fmt::format("meeting/{}/{}/rank.{}/{}{}", f, one.kind, meshes_.replica.world().rank(),
                       one.parameter, one.piece ? "@" + to_text(*one.piece) : ""),
           one.tensor});
  return all;
}

core::Json LocalUpdates::own_json() {
  core::Json counted = core::Json::array(), mine = core::Json::array(), ranks = core::Json::array();
  for (Fragment& one : fragments_) {
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
  const bool same_turns = counted.size() == fragments_.size();
  for (std::size_t f = 0; f < fragments_.size(); ++f) {
    fragments_[f].flight.reset();
    fragments_[f].counted = tensor_of(counted.at(same_turns ? f : 0), fragments_[f].counted);
  }
  const core::Json& ranks = own.at("reducers");
  const auto rank = static_cast<std::size_t>(meshes_.replica.world().rank());
  for (std::size_t f = 0; same_turns && f < fragments_.size(); ++f)
    if (rank < ranks.size() && !ranks.at(rank).at(f).is_null())
      fragments_[f].reducer->restore(ranks.at(rank).at(f));
  if (!same_turns) return;  // sums under way are lost; what the replicas moved is still in them
  for (const core::Json& saved : common.at("flights")) {
    Fragment& one = fragments_.at(saved.at("fragment").get<std::size_t>());
    Flight flight{.step = saved.at("step"),
                  .rate = saved.at("rate"),
                  .totals = {},
                  .totals_work = {},
                  .sum = {}};
    flight.totals = tensor_of(saved.at("totals"), one.counted);
    flight.arrived = true;
    one.flight = std::move(flight);
  }
}

void LocalUpdates::restart_from(const std::vector<at::Tensor>& means, const Block& block) {
  const at::NoGradGuard guard;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    options_.outer->advance(start_[i], means[i], velocity_[i], block);
    shards_[i].master.detach().copy_(start_[i]);
  }
}

void LocalUpdates::restart() {
  const at::NoGradGuard guard;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    start_[i].copy_(shards_[i].master.detach());
    if (velocity_[i].defined()) velocity_[i].zero_();
  }
}

}  // namespace trireme::parallel
