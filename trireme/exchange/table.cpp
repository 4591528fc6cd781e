#include "trireme/exchange/table.h"

#include <algorithm>

namespace trireme::exchange {

namespace {

constexpr char kBlock = '*', kExpert = '#';

int64_t head_rows_of(const config::Model& model) {
  return model.head_dim > 0 ? model.head_dim : model.hidden / model.heads;
}

bool has(When when, const config::Model& model) {
  return when == When::Always || (when == When::Untied && !model.tie) ||
         (when == When::QkvBias && model.qkv_bias);
}

std::string named(std::string_view pattern, int64_t block, int64_t expert = 0) {
  std::string name(pattern);
  if (const auto star = name.find(kBlock); star != name.npos)
    name.replace(star, 1, std::to_string(block));
  if (const auto place = name.find(kExpert); place != name.npos)
    name.replace(place, 1, std::to_string(expert));
  return name;
}

bool is_stack(const TableRow& row) {
  return row.sources.front().name.find(kExpert) != std::string_view::npos;
}

MappedTensor mapped(const TableRow& row, int64_t block, const config::Model& ours,
                    const config::Model& theirs) {
  MappedTensor tensor{.name = named(row.name, block), .shape = {0}, .parts = {}};
  const bool matrix = row.columns != Size::One;
  const int64_t columns = size_of(row.columns, ours);
  std::vector<std::pair<int64_t, TableSource>> sources;  // with the number of an expert
  for (int64_t expert = 0; expert < (is_stack(row) ? ours.experts : 1); ++expert)
    for (const TableSource& source : row.sources) sources.emplace_back(expert, source);
  for (const auto& [expert, source] : sources) {
    const int64_t their_rows = size_of(source.rows, theirs), rows = size_of(source.rows, ours);
    Part part{.theirs = named(source.name, block, expert),
              .shape = {their_rows},
              .row = tensor.shape[0],
              .rows = std::min(rows, their_rows),
              .form = source.form};
    if (matrix) part.shape.insert(part.shape.begin() + 1, columns);
    if (source.form == Form::Transposed) std::ranges::reverse(part.shape);
    if (source.form == Form::Rotary) {
      part.head_rows = head_rows_of(ours);
      if (ours.rope_pairs == theirs.rope_pairs) part.form = Form::Same;
    }
    tensor.shape[0] += rows;
    tensor.parts.push_back(std::move(part));
  }
  if (is_stack(row)) tensor.shape = {ours.experts, tensor.shape[0] / ours.experts};
  if (matrix) tensor.shape.push_back(columns);
  return tensor;
}

}  // namespace

int64_t size_of(Size size, const config::Model& model) {
  const int64_t head = head_rows_of(model);
  switch (size) {
    case Size::One: break;
    case Size::Hidden: return model.hidden;
    case Size::Ffn: return model.ffn;
    case Size::Vocab: return model.vocab;
    case Size::Positions: return model.seq;
    case Size::Qkv: return (model.heads + 2 * model.kv_heads) * head;
    case Size::Q: return model.heads * head;
    case Size::Kv: return model.kv_heads * head;
    case Size::ExpertFfn: return model.expert_ffn;
    case Size::Experts: return model.experts;
  }
  return 1;
}

std::vector<MappedTensor> expand(const std::vector<TableRow>& table, const config::Model& ours,
                                 const config::Model& theirs) {
  std::vector<MappedTensor> all;
  for (auto row = table.begin(); row != table.end();) {
    const auto in_block = [](const TableRow& one) {
      return one.name.find(kBlock) != one.name.npos;
    };
    const auto end = in_block(*row) ? std::find_if_not(row, table.end(), in_block) : std::next(row);
    const int64_t blocks = in_block(*row) ? ours.layers : 1;
    for (int64_t block = 0; block < blocks; ++block)
      for (auto one = row; one != end; ++one)
        if (has(one->when, ours)) all.push_back(mapped(*one, block, ours, theirs));
    row = end;
  }
  return all;
}

}  // namespace trireme::exchange
