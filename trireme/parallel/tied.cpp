#include "trireme/parallel/tied.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/core/hash.h"

namespace trireme::parallel {

TiedParameters::TiedParameters(std::vector<Kept>& kept, const comm::Communicator& pipe) {
  std::string mine;
  for (const Kept& one : kept) mine += one.name + "\n";
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
  for (const auto& [holders, names] : by_holders) {
    const bool holds = holders.contains(pipe.rank());
    Group group{pipe.split("tied", holds ? 0 : 1, pipe.rank()), {}, {}};
    if (!holds) continue;
    for (Kept& one : kept) {
      if (!names.contains(one.name)) continue;
      group.names.push_back(one.name);
      group.tensors.push_back(one.tensor);
      if (pipe.rank() != *holders.begin())
        for (Held& held : one.held) held.first = false;
    }
    groups_.push_back(std::move(group));
  }
}

void TiedParameters::sum_gradients() const {
  const at::NoGradGuard guard;
  for (const Group& group : groups_) {
    at::Tensor used = at::zeros({static_cast<int64_t>(group.tensors.size())}, at::kLong);
    for (std::size_t i = 0; i < group.tensors.size(); ++i)
      used.data_ptr<int64_t>()[i] = group.tensors[i].grad().defined() ? 1 : 0;
    group.holders.all_reduce(used).wait();
    for (std::size_t i = 0; i < group.tensors.size(); ++i) {
      if (used.data_ptr<int64_t>()[i] == 0) continue;
      at::Tensor& gradient = group.tensors[i].mutable_grad();
      if (!gradient.defined()) gradient = at::zeros_like(group.tensors[i].detach());
      at::Tensor sum = gradient.contiguous();
      group.holders.all_reduce(sum).wait();
      if (sum.data_ptr() != gradient.data_ptr()) gradient.copy_(sum);
    }
  }
}

void TiedParameters::check_same() const {
  for (const Group& group : groups_) {
    const auto count = static_cast<int64_t>(group.tensors.size());
    at::Tensor mine = at::empty({1, count}, at::kLong);
    for (std::size_t i = 0; i < group.tensors.size(); ++i) {
      const at::Tensor values = group.tensors[i].detach().cpu().contiguous();
      mine.data_ptr<int64_t>()[i] = static_cast<int64_t>(
          core::hash64(values.data_ptr(), static_cast<std::size_t>(values.nbytes())));
    }
    at::Tensor all = at::empty({group.holders.size(), count}, at::kLong);
    group.holders.all_gather(all, mine).wait();
    for (int64_t i = 0; i < count; ++i)
      if ((all.select(1, i) != all[0][i]).any().item<bool>())
        throw CommError(fmt::format(
            "the stages on '{}' have drifted apart: the tied '{}' is not the same on all that hold "
            "it. Something changed it on one rank only, outside of the optimizer step",
            group.holders.name(), group.names[static_cast<std::size_t>(i)]));
  }
}

}  // namespace trireme::parallel
