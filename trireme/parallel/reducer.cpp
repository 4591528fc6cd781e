#include "trireme/parallel/reducer.h"

#include <ATen/ops/cat.h>

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme::parallel {

namespace {

constexpr std::size_t kSmallBytes = 64 << 10;

class PlainReducer final : public Reducer {
 public:
  using Reducer::Reducer;

  comm::Work start(GradientBlock block, const RankSet& over) override {
    if (block.data.defined()) return group(over).all_reduce(std::move(block.data));
    return group(over).reduce_scatter(std::move(block.shards), std::move(block.whole),
                                      comm::ReduceOp::Sum, std::move(block.rows), block.name);
  }
};

}  // namespace

const comm::Communicator& Reducer::group(const RankSet& set) {
  if (!set.same_experts && set.copies == 1 && set.holders.empty()) return mesh_.group(set.axes);
  const auto found = made_.find(set);
  if (found != made_.end()) return found->second;
  core::check(set.axes.empty() && !set.same_experts,
              "gradients cannot be summed over '{}' yet: experts are not reduced by this version",
              to_string(set));
  // Both kinds of set divide one axis: into blocks of neighbours, or into holders and the others.
  const bool tied = !set.holders.empty();
  const comm::Communicator& axis = mesh_.group(tied ? Axis::Pipe : Axis::Tensor);
  const bool holds = std::ranges::find(set.holders, axis.rank()) != set.holders.end();
  const int color = tied ? (holds ? 0 : 1) : axis.rank() / set.copies;
  return made_.emplace(set, axis.split(tied ? "tied" : "copies", color, axis.rank())).first->second;
}

std::shared_ptr<Reducer> make_reducer(const Mesh& mesh) {
  return std::make_shared<PlainReducer>(mesh);
}

void PackedSum::start(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& one : tensors) {
    if (one.is_contiguous() && one.nbytes() >= kSmallBytes)
      works_.push_back(reducer_->start({.data = one}, over_));
    else if (one.numel() > 0)
      packed_[one.scalar_type()].second.push_back(one);
  }
  for (auto& [dtype, pack] : packed_) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& one : pack.second) flat.push_back(one.reshape({-1}));
    pack.first = at::cat(flat);
    works_.push_back(reducer_->start({.data = pack.first}, over_));
  }
}

void PackedSum::wait() {
  for (comm::Work& work : works_) work.wait();
  for (const auto& [dtype, pack] : packed_) {
    int64_t begin = 0;
    for (const at::Tensor& one : pack.second) {
      one.copy_(pack.first.narrow(0, begin, one.numel()).view(one.sizes()));
      begin += one.numel();
    }
  }
  works_.clear();
  packed_.clear();
}

}  // namespace trireme::parallel
