#include "trireme/nn/bind.h"

#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>

#include "trireme/core/error.h"

namespace trireme::nn {

namespace {

thread_local int num_deferred = 0;

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.storage().unsafeGetStorageImpl();
}

std::size_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
}

/// Makes every access to the memory an error, if this libtorch can.
template <class Storage>
void refuse_reads(Storage& storage, const std::string& why) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); })
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(why);
}

template <class Storage>
constexpr bool can_refuse() {
  return requires(Storage & storage) {
    storage.clear_data_ptr_access_error_msg_();
  };
}

template <class Storage>
void allow_reads(Storage& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); })
    storage.clear_data_ptr_access_error_msg_();
}

}  // namespace

void bind(const at::Tensor& parameter, const at::Tensor& home) {
  TORCH_CHECK(parameter.storage_offset() == 0 && parameter.is_contiguous(),
              "bind: the parameter must own its storage from the start, and be contiguous");
  TORCH_CHECK(home.is_contiguous() && home.numel() == parameter.numel() &&
                  home.scalar_type() == parameter.scalar_type() &&
                  home.device() == parameter.device(),
              "bind: ", parameter.sizes(), " ", parameter.scalar_type(), " does not fit ",
              home.sizes(), " ", home.scalar_type());
  c10::StorageImpl& storage = storage_of(parameter);
  allow_reads(storage);
  // The parameter keeps `home` alive.
  auto* keep = new at::Tensor(home.detach());
  storage.set_data_ptr_noswap(at::DataPtr(
      home.data_ptr(), keep, [](void* kept) { delete static_cast<at::Tensor*>(kept); },
      parameter.device()));
  storage.set_nbytes(bytes_of(parameter));
}

void unbind(const at::Tensor& parameter, const std::string& why) {
  c10::StorageImpl& storage = storage_of(parameter);
  allow_reads(storage);
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, parameter.device()));
  storage.set_nbytes(static_cast<std::size_t>(0));
  refuse_reads(storage, why);
}

bool unbound_reads_throw() {
  return can_refuse<c10::StorageImpl>();
}

bool is_bound(const at::Tensor& parameter) {
  return parameter.storage().nbytes() >= bytes_of(parameter);
}

void check_bound(const at::Tensor& parameter, const std::string& name) {
  if (is_bound(parameter)) return;
  (void)storage_of(parameter).data();  // throws with the reason that `unbind` was given, if kept
  throw MisuseError(fmt::format(
      "parameter '{}' has no memory now: it is sharded and used outside of its layer, belongs to "
      "another stage of a pipeline, or was built under nn::Deferred and has no memory yet",
      name));
}

at::Tensor unbound(at::IntArrayRef shape, at::TensorOptions options, const std::string& why) {
  at::Tensor tensor = at::empty({0}, options);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  if (tensor.numel() > 0) refuse_reads(storage_of(tensor), why);
  return tensor;
}

Deferred::Deferred() {
  ++num_deferred;
}
Deferred::~Deferred() {
  --num_deferred;
}
bool Deferred::on() {
  return num_deferred > 0;
}

namespace {

void convert(at::Tensor parameter, const at::TensorOptions& options) {
  if (is_bound(parameter))
    parameter.set_data(parameter.detach().to(options));
  else
    parameter.set_data(unbound(parameter.sizes(), options.requires_grad(false),
                               "a parameter has no memory yet: it was built under nn::Deferred, "
                               "and nothing has given it any"));
}

}  // namespace

void set_dtype(const at::Tensor& parameter, at::ScalarType dtype) {
  const at::NoGradGuard guard;
  if (parameter.scalar_type() != dtype) convert(parameter, parameter.options().dtype(dtype));
}

void move_to(torch::nn::Module& module, at::ScalarType dtype, at::Device device) {
  const at::NoGradGuard guard;
  for (const at::Tensor& one : module.parameters())
    convert(one, one.options().device(device).dtype(one.is_floating_point() ? dtype
                                                                            : one.scalar_type()));
  for (const at::Tensor& buffer : module.buffers()) {
    at::Tensor one = buffer;
    one.set_data(one.to(
        one.options().device(device).dtype(one.is_floating_point() ? dtype : one.scalar_type())));
  }
}

}  // namespace trireme::nn
