#include "trireme/parallel/replicas.h"

#include <algorithm>
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

/// The ranks that hold the same of a parameter: all replicas, and where the tensor axis does not
/// cut it those of that axis too. (Copies that a cut makes are made from the seed.)
comm::Communicator holders(const nn::Parameter& parameter, const Mesh& mesh) {
  if (parameter.layout.is_cut(Axis::Tensor))
    return mesh.group({Axis::Replica, Axis::Shard, Axis::Context});
  return mesh.group({Axis::Replica, Axis::Shard, Axis::Context, Axis::Tensor});
}

/// Is it a part of the tensor, other than what another rank of the tensor axis has?
bool is_cut(const Kept& kept) {
  return std::any_of(kept.pieces.begin(), kept.pieces.end(),
                     [](const Piece& piece) { return piece.shape != piece.whole; });
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

void broadcast_parameters(const torch::nn::Module& module, const Mesh& mesh) {
  const at::NoGradGuard guard;
  for (const nn::Parameter& one : nn::parameters_of(module))
    if (nn::is_bound(one.tensor)) broadcast(one.tensor, holders(one, mesh));
  broadcast_buffers(module, mesh.world());
}

void broadcast_buffers(const torch::nn::Module& module, const comm::Communicator& group) {
  const at::NoGradGuard guard;
  for (const auto& item : module.named_buffers()) broadcast(item.value(), group);
}

void check_same_values(const std::vector<Kept>& kept, const Mesh& mesh) {
  if (mesh.world().size() == 1) return;
  for (const bool cut : {true, false}) {
    for (const bool sharded : {true, false}) {
      std::vector<const Kept*> members;
      std::vector<int64_t> hashes;
      for (const Kept& one : kept) {
        if (is_cut(one) != cut || one.sharded != sharded) continue;
        members.push_back(&one);
        const at::Tensor values = one.tensor.detach().cpu().contiguous();
        hashes.push_back(static_cast<int64_t>(
            core::hash64(values.data_ptr(), static_cast<std::size_t>(values.nbytes()))));
      }
      std::vector<Axis> axes = {Axis::Replica, Axis::Context};
      if (!sharded) axes.push_back(Axis::Shard);
      if (!cut) axes.push_back(Axis::Tensor);
      const comm::Communicator group = mesh.group(axes);
      if (members.empty()) continue;  // as on every rank of the group
      const at::Tensor all = gather_numbers(hashes, group);
      for (int64_t i = 0; i < all.size(1); ++i) {
        for (int64_t rank = 1; rank < all.size(0); ++rank) {
          if (all[rank][i].item<int64_t>() == all[0][i].item<int64_t>()) continue;
          throw CommError(fmt::format(
              "the replicas on '{}' have drifted apart: '{}' of rank {} differs from rank 0's. "
              "Something changed it on one rank only, outside of the optimizer step",
              group.name(), members[static_cast<std::size_t>(i)]->name, rank));
        }
      }
    }
  }
}

}  // namespace trireme::parallel
