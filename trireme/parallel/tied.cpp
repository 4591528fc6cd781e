#include "trireme/parallel/tied.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <sstream>
#include <tuple>

#include "trireme/comm/texts.h"

namespace trireme::parallel {

namespace {

/// By name, and by place where a parameter is kept in several pieces.
bool comes_before(const Kept& a, const Kept& b) {
  const auto place = [](const Kept& one) {
    return std::tuple(one.name, one.pieces.front().offset, one.pieces.front().begin);
  };
  return place(a) < place(b);
}

std::vector<Kept> those_of(const std::vector<Kept>& all, const std::set<std::string>& names) {
  std::vector<Kept> some;
  for (const Kept& one : all)
    if (names.contains(one.name) && !one.pieces.empty()) some.push_back(one);
  std::sort(some.begin(), some.end(), comes_before);
  return some;
}

}  // namespace

TiedParameters::TiedParameters(const std::vector<Kept>& trained, const std::vector<Kept>& frozen,
                               const comm::Communicator& pipe) {
  std::string mine;
  for (const auto* list : {&trained, &frozen})
    for (const Kept& one : *list) mine += one.name + "\n";
  const auto texts = comm::all_gather_texts(pipe, mine);
  std::map<std::string, std::set<int>> holders_of;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream names(texts[rank]);
    for (std::string name; std::getline(names, name);)
      holders_of[name].insert(static_cast<int>(rank));
  }
  std::map<std::set<int>, std::set<std::string>> by_holders;  // in the same order on every rank
  for (const auto& [name, holders] : holders_of)
    if (holders.size() > 1) by_holders[holders].insert(name);
  const at::NoGradGuard guard;
  for (const auto& [holders, names] : by_holders) {
    const bool holds = holders.contains(pipe.rank());
    Group group{pipe.split("tied", holds ? 0 : 1, pipe.rank()), those_of(trained, names)};
    if (!holds) continue;
    group.trained = group.kept.size();
    for (Kept& one : those_of(frozen, names)) group.kept.push_back(std::move(one));
    for (const Kept& one : group.kept) {
      at::Tensor values = one.tensor.detach().contiguous();
      group.holders.broadcast(values, 0).wait();
      one.tensor.detach().copy_(values);
    }
    if (pipe.rank() != *holders.begin()) elsewhere_.insert(names.begin(), names.end());
    groups_.push_back(std::move(group));
  }
}

void TiedParameters::mark(std::vector<Kept>& kept) const {
  for (Kept& one : kept)
    if (elsewhere_.contains(one.name))
      for (Held& held : one.held) held.first = false;
}

void TiedParameters::sum_gradients() const {
  const at::NoGradGuard guard;
  for (const Group& group : groups_) {
    at::Tensor used = at::zeros({static_cast<int64_t>(group.trained)}, at::kLong);
    for (std::size_t i = 0; i < group.trained; ++i)
      used.data_ptr<int64_t>()[i] = group.kept[i].tensor.grad().defined() ? 1 : 0;
    group.holders.all_reduce(used).wait();
    for (std::size_t i = 0; i < group.trained; ++i) {
      if (used.data_ptr<int64_t>()[i] == 0) continue;
      at::Tensor& gradient = group.kept[i].tensor.mutable_grad();
      if (!gradient.defined()) gradient = at::zeros_like(group.kept[i].tensor.detach());
      at::Tensor sum = gradient.contiguous();
      group.holders.all_reduce(sum).wait();
      if (sum.data_ptr() != gradient.data_ptr()) gradient.copy_(sum);
    }
  }
}

}  // namespace trireme::parallel
