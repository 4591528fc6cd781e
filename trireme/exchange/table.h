#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/config/config.h"

namespace trireme::exchange {

/// How the rows of a Hugging Face tensor lie in ours.
enum class Form : uint8_t {
  Same,
  Transposed,  ///< GPT-2's Conv1D keeps [inputs, outputs]
  Rotary       ///< Same; but where model.rope_pairs is "neighbours", a head's rows are dealt out
};

/// A size that a table asks a configuration for. One: a tensor has no second dim.
enum class Size : uint8_t { One, Hidden, Ffn, Vocab, Positions, Qkv, Q, Kv, ExpertFfn, Experts };
int64_t size_of(Size size, const config::Model& model);

/// When a model has the tensor.
enum class When : uint8_t { Always, Untied, QkvBias };

/// A tensor of Hugging Face that is some rows of one of ours.
struct TableSource {
  std::string_view name;  ///< "*" stands for the number of a block, "#" for that of an expert
  Size rows;              ///< of ours
  Form form = Form::Same;
};

/// A tensor of ours and those that it is made of, one above the other:
///
///     layers.*.attn.qkv.weight   [q_proj]    Q rows
///                                [k_proj]    Kv rows
///                                [v_proj]    Kv rows
///                                 Hidden columns
///
/// Where theirs have a "#", ours is a stack of such matrices, one for each expert.
struct TableRow {
  std::string_view name;
  std::vector<TableSource> sources;
  Size columns = Size::One;
  When when = When::Always;
};

/// The rows of a Hugging Face tensor that are rows [row, row + rows) of one of ours.
struct Part {
  std::string theirs;
  std::vector<int64_t> shape;  ///< of theirs
  /// Of ours, counted one expert after the other; theirs may have more, which are left out.
  int64_t row = 0, rows = 0;
  Form form = Form::Same;  ///< Rotary only where rows are dealt out
  int64_t head_rows = 0;   ///< Rotary: rows of a head
  bool operator==(const Part&) const = default;
};

/// One of our tensors. Rows that no part has are padding of the vocabulary.
struct MappedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<Part> parts;

  int64_t columns() const { return shape.size() == 1 ? 1 : shape.back(); }
};

/// The tensors of a model, in the order of the table. `theirs` and `ours` may differ in the
/// vocabulary, in the number of positions (ours has fewer) and in model.rope_pairs.
std::vector<MappedTensor> expand(const std::vector<TableRow>& table, const config::Model& ours,
                                 const config::Model& theirs);

}  // namespace trireme::exchange
