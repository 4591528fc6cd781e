#include "trireme/nn/bind.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

namespace trireme::nn {

at::DataPtr bind(const at::Tensor& tensor, at::DataPtr memory, std::size_t bytes) {
  TORCH_CHECK(tensor.storage_offset() == 0 && tensor.is_contiguous(),
              "bind: the tensor must own its storage from the start, and be contiguous");
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  at::DataPtr old = storage->set_data_ptr(std::move(memory));
  storage->set_nbytes(bytes);
  return old;
}

at::DataPtr unbind(const at::Tensor& tensor) {
  return bind(tensor, at::DataPtr(nullptr, tensor.device()), 0);
}

void move_into(const at::Tensor& tensor, const at::Tensor& home) {
  TORCH_CHECK(home.is_contiguous() && home.numel() == tensor.numel() &&
                  home.scalar_type() == tensor.scalar_type() && home.device() == tensor.device(),
              "move_into: ", tensor.sizes(), " ", tensor.scalar_type(), " does not fit ",
              home.sizes(), " ", home.scalar_type());
  {
    const at::NoGradGuard guard;
    home.detach().copy_(tensor.detach().view_as(home));
  }
  // The memory lives as long as the last of the two: the tensor's DataPtr owns a handle of `home`.
  auto* keep = new at::Tensor(home.detach());
  bind(tensor,
       at::DataPtr(
           home.data_ptr(), keep, [](void* kept) { delete static_cast<at::Tensor*>(kept); },
           tensor.device()),
       static_cast<std::size_t>(tensor.nbytes()));
}

}  // namespace trireme::nn
