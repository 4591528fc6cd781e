#include "trireme/worker/parameter_table.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <map>

#include "trireme/core/error.h"
#include "trireme/nn/bind.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/precision.h"

namespace trireme::ps {

namespace {

/// The values that parameters have when the job begins. Those with memory are copied, because
/// training changes them.
class ParameterValues final : public FirstValues {
 public:
  void add(nn::Parameter parameter) {
    const bool has_memory = nn::is_bound(parameter.tensor);
    core::check(has_memory || parameter.init,
                "parameter '{}' has no memory and no rule for its first values", parameter.name);
    parameter.tensor = has_memory ? parameter.tensor.detach().cpu().clone() : at::Tensor();
    const std::string name = parameter.name;
    parameters_.emplace(name, std::move(parameter));
  }
  void fill(const Piece& piece, std::span<float> values) const override {
    fill_tensor(piece, values.data(), at::kFloat);
  }
  void fill(const Piece& piece, std::span<double> values) const override {
    fill_tensor(piece, values.data(), at::kDouble);
  }

 private:
  void fill_tensor(const Piece& piece, void* memory, at::ScalarType type) const {
    const at::NoGradGuard guard;
    at::Tensor to = at::from_blob(memory, {piece.count}, type);
    const nn::Parameter& parameter = parameters_.at(piece.name);
    if (!parameter.tensor.defined()) return nn::fill_piece(parameter, piece, to);
    const at::Tensor box = nn::box_of(parameter.tensor, {piece.offset, piece.shape});
    to.copy_(box.reshape({-1}).narrow(0, piece.begin, piece.count));
  }

  std::map<std::string, nn::Parameter> parameters_;
};

ValueType type_of(core::DType master, const std::string& name) {
  core::check(master == core::DType::Float32 || master == core::DType::Float64,
              "parameter '{}' is kept in 16 bits, but servers keep float32 or float64; give it a "
              "master",
              name);
  return master == core::DType::Float64 ? ValueType::Float64 : ValueType::Float32;
}

}  // namespace

TableConfig parameter_table(const std::string& name, const HeldParameters& held) {
  TableConfig table{.name = name};
  const auto values = std::make_shared<ParameterValues>();
  std::vector<Piece> pieces;
  std::optional<ValueType> type;
  for (const nn::Parameter& one : held.parameters) {
    if (!one.tensor.requires_grad()) continue;
    const ParameterDtypes dtypes = parallel::dtypes_of(one, held.policy.precision);
    const ValueType own = type_of(dtypes.master, one.name);
    core::check(type.value_or(own) == own,
                "parameter '{}' is {}, and others are not; a table has one type", one.name,
                own == ValueType::Float64 ? "float64" : "float32");
    type = own;
    const Holders holders = held.holders ? held.holders(one.name) : Holders{};
    for (const Reduction& box :
         reductions_of(one.layout, holders, held.degrees, held.coord, held.policy, dtypes)) {
      if (!box.counts || box.kept.count == 0) continue;
      pieces.push_back(piece_of(one.name, one.layout, box));
      table.factors.push_back(
          held.factors ? held.factors(one)
                       : PieceFactors{.decay = optim::is_decayed(one.layout.whole()) ? 1.0 : 0.0});
    }
    values->add(one);
  }
  table.type = type.value_or(ValueType::Float32);
  lay_out(table, std::move(pieces));
  table.first_values = values;
  return table;
}

TableConfig module_table(const torch::nn::Module& module, RulePtr rule, const std::string& name) {
  TableConfig table = parameter_table(name, {.parameters = nn::parameters_of(module)});
  table.rule = std::move(rule);
  return table;
}

}  // namespace trireme::ps
