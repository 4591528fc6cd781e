#include "trireme/parallel/norm.h"

#include <cmath>

namespace trireme::parallel {

double gradient_norm(const std::vector<nn::Parameter>& parameters, const Mesh& mesh) {
  double squares = 0;
  for (const nn::Parameter& one : parameters) {
    const at::Tensor& gradient = one.tensor.grad();
    if (!gradient.defined()) continue;
    for (const Held& held : one.layout.held(mesh.coord(), mesh.degrees())) {
      if (!held.first) continue;
      const double norm = at::linalg_vector_norm(nn::part_of(gradient, held)).item<double>();
      squares += norm * norm;
    }
  }
  const comm::Communicator& tensor = mesh.group(Axis::Tensor);
  if (tensor.size() > 1) {
    at::Tensor sum = at::tensor({squares}, at::kDouble);
    tensor.all_reduce(sum).wait();
    squares = sum.item<double>();
  }
  return std::sqrt(squares);
}

}  // namespace trireme::parallel
