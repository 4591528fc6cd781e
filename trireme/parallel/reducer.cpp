#include "trireme/parallel/reducer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "trireme/comm/dtype.h"
#include "trireme/core/error.h"

namespace trireme::parallel {

namespace {

constexpr std::size_t kSmallBytes = 64 << 10;

class PlainReducer final : public Reducer {
 public:
  using Reducer::Reducer;

  StartedSum start(GradientBlock block, const RankSet& over) override {
    const comm::Communicator& ranks = group(over, block.lane);
    const at::ScalarType dtype =
        block.data.defined() ? block.data.scalar_type() : block.whole.front().scalar_type();
    const bool travels = ranks.size() > 1 && block.wire.has_value();
    const at::ScalarType wire = travels ? comm::scalar_type_of(*block.wire) : dtype;
    if (block.data.defined()) return sum(ranks, block.data, wire);
    return scatter(ranks, std::move(block), wire);
  }

 private:
  static StartedSum sum(const comm::Communicator& ranks, at::Tensor data, at::ScalarType wire) {
    if (data.scalar_type() == wire) return ranks.all_reduce(std::move(data));
    at::Tensor sent = data.to(wire);
    return {ranks.all_reduce(sent), [data, sent] { data.copy_(sent); }};
  }

  static StartedSum scatter(const comm::Communicator& ranks, GradientBlock block,
                            at::ScalarType wire) {
    const auto start = [&](std::vector<at::Tensor> shards, std::vector<at::Tensor> whole) {
      return ranks.reduce_scatter(std::move(shards), std::move(whole), comm::ReduceOp::Sum,
                                  std::move(block.rows), block.name);
    };
    if (block.whole.front().scalar_type() == wire)
      return start(std::move(block.shards), std::move(block.whole));
    std::vector<at::Tensor> sent, got;
    for (const at::Tensor& one : block.whole) sent.push_back(one.to(wire));
    for (const at::Tensor& one : block.shards)
      got.push_back(at::empty(one.sizes(), one.options().dtype(wire)));
    return {start(got, std::move(sent)), [got, to = std::move(block.shards)] {
              for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(got[i]);
            }};
  }
};

}  // namespace

/// The groups that gradients are summed in. A set of axes has a group of the mesh; the others are
/// made when they are first asked for.
class Reducer::Groups {
 public:
  explicit Groups(const Mesh& mesh) : mesh_(mesh) {}

  const comm::Communicator& get(const RankSet& set, int lane) {
    const bool plain = !set.same_experts && set.copies == 1 && set.holders.empty();
    if (plain && lane == 0 && !set.axes.empty()) return mesh_.group(set.axes);
    const auto found = made_.find({set, lane});
    if (found != made_.end()) return found->second;
    TORCH_INTERNAL_ASSERT(lane == 0, "open_lane was not called");
    if (plain) return made_.emplace(std::pair(set, 0), mesh_.world().alone("one")).first->second;
    if (set.same_experts && set.copies == 1 && set.holders.empty()) {
      // Of the ranks that differ along these axes, those that hold the same experts.
      const comm::Communicator& all = mesh_.group(set.axes);
      return made_
          .emplace(std::pair(set, 0),
                   all.split("same experts", mesh_.coord(Axis::Expert), all.rank()))
          .first->second;
    }
    core::check(set.axes.empty() && !set.same_experts, "gradients cannot be summed over '{}'",
                to_string(set));
    // Both kinds of set divide one axis: into blocks of neighbours, or into holders and the others.
    const bool tied = !set.holders.empty();
    const comm::Communicator& axis = mesh_.group(tied ? Axis::Pipe : Axis::Tensor);
    const bool holds = std::ranges::find(set.holders, axis.rank()) != set.holders.end();
    const int color = tied ? (holds ? 0 : 1) : axis.rank() / set.copies;
    return made_
        .emplace(std::pair(set, 0), axis.split(tied ? "tied" : "copies", color, axis.rank()))
        .first->second;
  }

  int open_lane(const RankSet& set) {
    const std::vector<int> ranks = ranks_of(set, mesh_.coord(), mesh_.degrees());
    if (ranks.size() == 1) return 0;
    const int lane = lanes_[ranks]++;
    if (lane == 0) return 0;
    const comm::Communicator& first = get(set, 0);
    made_.emplace(std::pair(set, lane),
                  first.split(fmt::format("gradients{}", lane), 0, first.rank()));
    return lane;
  }

 private:
  Mesh mesh_;
  std::map<std::pair<RankSet, int>, comm::Communicator> made_;
  std::map<std::vector<int>, int> lanes_;  // how many there are over these ranks
};

Reducer::Reducer(const Mesh& mesh) : groups_(std::make_shared<Groups>(mesh)) {}

const comm::Communicator& Reducer::group(const RankSet& set, int lane) {
  return groups_->get(set, lane);
}

int Reducer::open_lane(const RankSet& set) {
  return groups_->open_lane(set);
}

std::shared_ptr<Reducer> make_reducer(const Mesh& mesh) {
  return std::make_shared<PlainReducer>(mesh);
}

void PackedSum::start(const std::vector<at::Tensor>& tensors,
                      const std::vector<GradientPlacePtr>& places) {
  std::map<at::ScalarType, std::vector<BlockMember>> members;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& one = tensors[i];
    if (one.numel() == 0) continue;
    if (one.is_contiguous() && one.nbytes() >= kSmallBytes) {
      GradientBlock block{.data = one.view({-1}), .wire = wire_, .lane = lane_};
      if (!places.empty()) block.members = {{places[i], 0}};
      works_.push_back(reducer_->start(std::move(block), over_));
      continue;
    }
    auto& packed = packed_[one.scalar_type()].second;
    auto& inside = members[one.scalar_type()];
    if (!places.empty())
      inside.push_back(
          {places[i], inside.empty() ? 0 : inside.back().begin + inside.back().place->numel()});
    packed.push_back(one);
  }
  for (auto& [dtype, pack] : packed_) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& one : pack.second) flat.push_back(one.reshape({-1}));
    pack.first = at::cat(flat);
    works_.push_back(reducer_->start(
        {.data = pack.first, .wire = wire_, .lane = lane_, .members = std::move(members[dtype])},
        over_));
  }
}

void PackedSum::wait() {
  for (StartedSum& work : works_) work.wait();
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
