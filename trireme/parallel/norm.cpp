#include "trireme/parallel/norm.h"

#include <cmath>

namespace trireme::parallel {

double gradient_norm(const std::vector<Kept>& kept, const Mesh& mesh) {
  double squares = 0;
  bool sharded = mesh.size(Axis::Shard) > 1 && kept.empty();
  for (const Kept& one : kept) {
    sharded = sharded || one.sharded;
    const at::Tensor& gradient = one.tensor.grad();
    if (!gradient.defined()) continue;
    for (std::size_t i = 0; i < one.held.size(); ++i) {
      if (!one.held[i].first) continue;
      const double norm = at::linalg_vector_norm(one.part(gradient, i)).item<double>();
      squares += norm * norm;
    }
  }
  std::vector<Axis> axes = {Axis::Pipe, Axis::Tensor};
  if (sharded) axes.push_back(Axis::Shard);
  const comm::Communicator holders = mesh.group(axes);
  if (holders.size() > 1) {
    at::Tensor sum = at::tensor({squares}, at::kDouble);
    holders.all_reduce(sum).wait();
    squares = sum.item<double>();
  }
  return std::sqrt(squares);
}

}  // namespace trireme::parallel
