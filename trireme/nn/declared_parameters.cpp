#include "trireme/nn/declared_parameters.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "trireme/nn/bind.h"

namespace trireme::nn {

namespace {

at::Tensor make_memory(at::IntArrayRef shape, at::TensorOptions options, bool deferred) {
  if (!deferred) return at::empty(shape, options);
  return unbound(shape, options,
                 "a parameter has no memory yet: it was built under nn::Deferred, and nothing has "
                 "given it any (parallel::FullySharded does)");
}

}  // namespace

at::Tensor DeclaredParameters::declare(const std::string& name, std::vector<int64_t> shape,
                                       InitRule init) {
  at::Tensor made = make_memory(shape, {}, Deferred::on());
  tensors_.emplace_back(name, made);
  declared_.emplace(name, DeclaredParameter{Layout(std::move(shape)), init});
  return made;
}

void DeclaredParameters::add_tied(const std::string& name, const at::Tensor& tensor) {
  tensors_.emplace_back(name, tensor);
}

const DeclaredParameter* DeclaredParameters::find(const std::string& name) const {
  const auto found = declared_.find(name);
  return found == declared_.end() ? nullptr : &found->second;
}

DeclaredParameter* DeclaredParameters::find(const std::string& name) {
  const auto found = declared_.find(name);
  return found == declared_.end() ? nullptr : &found->second;
}

void DeclaredParameters::set_tied_to(const std::string& name, Parameter parameter) {
  tied_to_.insert_or_assign(name, std::move(parameter));
}

const Parameter* DeclaredParameters::tied_to(const std::string& name) const {
  const auto found = tied_to_.find(name);
  return found == tied_to_.end() ? nullptr : &found->second;
}

Layouts DeclaredParameters::whole_layouts(const std::vector<Axis>& partial) const {
  Layouts all;
  for (const auto& [name, declared] : declared_)
    all.emplace(name, Layout(declared.layout.whole(), {}, partial));
  return all;
}

void DeclaredParameters::cut(const Layouts& layouts, const Coord& coord, const Degrees& degrees) {
  for (const auto& [name, layout] : layouts) {
    DeclaredParameter& declared = declared_.at(name);
    declared.layout = layout;
    declared.coord = coord;
    declared.degrees = degrees;
    const auto own = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const auto& one) { return one.first == name; });
    at::Tensor& tensor = own->second;
    const auto shape = layout.local_shape(coord, degrees);
    // Only the data is replaced: layers that share the parameter keep pointing at the same tensor.
    if (tensor.sizes() != shape)
      tensor.set_data(make_memory(shape, tensor.options().requires_grad(false), !is_bound(tensor)));
  }
}

void DeclaredParameters::check_memory(const std::string& layer_name) const {
  for (const auto& [name, tensor] : tensors_)
    if (!is_bound(tensor)) check_bound(tensor, layer_name + "." + name);
}

void DeclaredParameters::set_seed(uint64_t seed) {
  seed_ = seed;
  is_initialized_ = true;
}

}  // namespace trireme::nn
