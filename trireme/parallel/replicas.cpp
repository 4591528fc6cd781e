#include "trireme/parallel/replicas.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>

#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/nn/bind.h"
#include "trireme/nn/parameters.h"

namespace trireme::parallel {

namespace {

std::string describe_copy(const std::string& name, at::IntArrayRef shape,
                          const at::Tensor& tensor) {
  std::ostringstream text;
  text << "'" << name << "' " << shape << " " << tensor.scalar_type()
       << (tensor.requires_grad() ? "" : ", not trained") << "\n";
  return text.str();
}

void broadcast(const at::Tensor& tensor, const comm::Communicator& group) {
  if (group.size() == 1) return;
  at::Tensor whole = tensor.detach().contiguous();
  group.broadcast(whole, 0).wait();
  if (whole.data_ptr() != tensor.data_ptr()) tensor.detach().copy_(whole);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// One number per rank and tensor, [ranks, tensors].
at::Tensor gather_numbers(const std::vector<int64_t>& mine, const comm::Communicator& group) {
  const at::Tensor in = at::tensor(mine, at::kLong).view({1, static_cast<int64_t>(mine.size())});
  at::Tensor out = at::empty({group.size(), in.size(1)}, at::kLong);
  group.all_gather(out, in).wait();
  return out;
}

at::Tensor raw_bytes(const at::Tensor& tensor) {
  return tensor.detach().contiguous().reshape({-1}).view(at::kByte);
}

/// Hashes: which elements of which tensor, and their values.
struct Fingerprint {
  uint64_t place, value;
};

uint64_t place_of(const Piece& piece) {
  return core::hash64(fmt::format("{} {} {} {} {}", piece.name, fmt::join(piece.offset, ","),
                                  fmt::join(piece.shape, ","), piece.begin, piece.count));
}

uint64_t value_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().cpu().contiguous();
  return core::hash64(values.data_ptr(), static_cast<std::size_t>(values.nbytes()));
}

/// A rank whose value differs from that of the first rank with the same elements; -1: there is
/// none.
struct Drift {
  int64_t rank = -1, first_rank = -1, index = 0;
};

/// Finds it in the fingerprints of all ranks; finds nothing on ranks that do not have them.
Drift first_drift(const std::vector<std::string>& ranks) {
  std::map<uint64_t, std::pair<uint64_t, int64_t>> known;  // by place: the value, and whose it is
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::size_t at = 0; at + sizeof(Fingerprint) <= ranks[rank].size();
         at += sizeof(Fingerprint)) {
      Fingerprint one{};
      std::memcpy(&one, ranks[rank].data() + at, sizeof one);
      const auto [found, is_new] =
          known.try_emplace(one.place, one.value, static_cast<int64_t>(rank));
      if (found->second.first != one.value)
        return {static_cast<int64_t>(rank), found->second.second,
                static_cast<int64_t>(at / sizeof(Fingerprint))};
    }
  }
  return {};
}

}  // namespace

void check_cut_on(const torch::nn::Module& module, const Mesh& mesh) {
  for (const nn::Parameter& one : nn::parameters_of(module)) {
    const auto shape = one.layout.local_shape(mesh.coord(), mesh.degrees());
    TORCH_CHECK(one.tensor.sizes() == shape, "'", one.name, "' is ", one.tensor.sizes(),
                ", but this rank of ", to_string(mesh.degrees()), " holds ", at::IntArrayRef(shape),
                " of it; cut the model on the mesh that it is trained on");
  }
}

void check_same_module(const torch::nn::Module& module, const comm::Communicator& group) {
  if (group.size() == 1) return;
  std::string mine;
  for (const nn::Parameter& one : nn::parameters_of(module))
    mine += describe_copy(one.name, one.layout.whole(), one.tensor);
  for (const auto& item : module.named_buffers())
    mine += describe_copy(item.key(), item.value().sizes(), item.value());
  const auto hash = static_cast<int64_t>(core::hash64(mine));
  const at::Tensor hashes = gather_numbers({hash}, group);
  if ((hashes == hashes[0]).all().item<bool>()) return;
  const auto texts = comm::all_gather_texts(group, mine);
  const auto first = lines_of(texts[0]);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const auto other = lines_of(texts[rank]);
    for (std::size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      const std::string here = i < first.size() ? first[i] : "nothing more";
      const std::string there = i < other.size() ? other[i] : "nothing more";
      if (here == there) continue;
      throw CommError(fmt::format(
          "the replicas on '{}' are not of one model: parameter {} is {} on rank 0, and {} on rank "
          "{}; build the same model on every rank",
          group.name(), i, here, there, rank));
    }
  }
}

void broadcast_parameters(const torch::nn::Module& module, const Mesh& mesh, Reducer& reducer) {
  const at::NoGradGuard guard;
  for (const nn::Parameter& one : nn::parameters_of(module)) {
    if (!nn::is_bound(one.tensor)) continue;
    const auto boxes = reductions_of(one.layout, {}, mesh.degrees(), mesh.coord(), Policy{});
    // First the copies of a box along a cut; then the axes, which are the same for all boxes.
    for (const RankSet& set : copy_sets_of(one.layout, mesh.degrees())) {
      const comm::Communicator& group = reducer.group(set);
      for (const Reduction& box : boxes)
        if (box.box.copies == set.copies) broadcast(nn::part_of(one.tensor, box.box), group);
    }
    if (boxes.empty()) continue;
    const RankSet& same = boxes.front().same_weight;
    broadcast(one.tensor, reducer.group({.axes = same.axes, .same_experts = same.same_experts}));
  }
  broadcast_buffers(module, mesh.world());
}

/// Sends all of them in one message, because they are many and small.
void broadcast_buffers(const torch::nn::Module& module, const comm::Communicator& group) {
  const at::NoGradGuard guard;
  const auto all = module.buffers();
  if (all.empty() || group.size() == 1) return;
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& one : all) bytes.push_back(raw_bytes(one));
  at::Tensor packed = at::cat(bytes);
  group.broadcast(packed, 0).wait();
  int64_t begin = 0;
  for (const at::Tensor& one : all) {
    const auto count = static_cast<int64_t>(one.nbytes());
    const at::Tensor given = packed.narrow(0, begin, count).clone().view(one.scalar_type());
    one.detach().copy_(given.view(one.sizes()));
    begin += count;
  }
}

void check_same_values(const std::vector<ParameterShard>& shards, const Buffers& buffers,
                       const comm::Communicator& world) {
  if (world.size() == 1) return;
  std::vector<Fingerprint> mine;
  std::vector<std::string> names;
  for (const ParameterShard& one : shards) {
    for (std::size_t i = 0; i < one.pieces.size(); ++i) {
      mine.push_back({place_of(one.pieces[i]), value_of(one.part(one.master, i))});
      names.push_back(one.name);
    }
  }
  for (const auto& [name, tensor] : buffers) {
    mine.push_back({core::hash64("buffer " + name), value_of(tensor)});
    names.push_back(name);
  }
  const std::string text(reinterpret_cast<const char*>(mine.data()),
                         mine.size() * sizeof(Fingerprint));
  const Drift found = first_drift(comm::gather_texts(world, text, 0));
  const at::Tensor told = at::tensor({found.rank, found.first_rank, found.index}, at::kLong);
  world.broadcast(told, 0).wait();
  const auto rank = told[0].item<int64_t>(), first = told[1].item<int64_t>();
  if (rank < 0) return;
  const auto index = static_cast<std::size_t>(told[2].item<int64_t>());
  const std::string name =
      comm::broadcast_text(world, world.rank() == rank ? names[index] : "", static_cast<int>(rank));
  throw CommError(
      fmt::format("the ranks of '{}' have drifted apart: '{}' of rank {} differs from rank {}'s. "
                  "Something changed it on one rank only, outside of the optimizer step",
                  world.name(), name, rank, first));
}

}  // namespace trireme::parallel
