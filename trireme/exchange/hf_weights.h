#pragma once

#include <map>
#include <string>
#include <vector>

#include "trireme/exchange/family.h"
#include "trireme/exchange/hf_folder.h"
#include "trireme/format/tensor_source.h"

namespace trireme::exchange {

/// The weights of a Hugging Face folder under our names, of which any piece can be read. Nothing is
/// converted beforehand: a piece is put together from the parts of their tensors that it covers.
///
///     attn.qkv.weight [128, 48]        a piece: rows 48 to 79, columns 24 to 47
///       q_proj  0 ..                     rows 48 .. of q_proj
///       k_proj 64 ..                     rows  0 .. of k_proj
class HfWeights : public format::TensorSource {
 public:
  /// Throws ConfigError if the folder has another architecture, or a tensor is missing, too many or
  /// of another shape than its config.json says. `ours`: the model that is wanted, which may have
  /// fewer positions, another vocabulary and another model.rope_pairs.
  HfWeights(const std::string& folder, const config::Model& ours);

  /// The model as its config.json describes it.
  config::Model theirs() const { return model_of(family_, settings_); }
  /// In the order of the model.
  const std::vector<MappedTensor>& tensors() const { return tensors_; }
  std::optional<Tensor> tensor(const std::string& name) const override;
  /// A tensor whose parts have several dtypes has the one that holds all of them exactly. Rows that
  /// pad the vocabulary are the mean of the others.
  void read(const Piece& wanted, std::string_view dtype, void* to) override;

 private:
  /// Rows [row, row + rows) and columns [column, column + columns) of one of our tensors.
  struct Block {
    int64_t row, rows, column, columns;
  };
  void check_names() const;
  void check_shapes() const;
  std::string their_name(const std::string& name) const;
  const format::Entry& entry_of(const Part& part) const;
  std::string dtype_of(const MappedTensor& tensor) const;
  void read_block(const MappedTensor& tensor, const Block& block, char* to);
  void read_part(const MappedTensor& tensor, const Part& part, const Block& block, char* to);
  void read_stored(const Part& part, const Block& block, char* to);
  void read_rows(const Part& part, int64_t columns, const Block& block, char* to);
  void read_transposed(const Part& part, const Block& block, char* to);
  void read_padding(const MappedTensor& tensor, const Block& block, char* to);
  const std::vector<char>& mean_row(const MappedTensor& tensor);

  Settings settings_;
  const Family& family_;
  HfFolder folder_;
  std::string prefix_;  // that their names lack
  std::vector<MappedTensor> tensors_;
  std::map<std::string, std::size_t> places_;
  std::map<std::string, std::vector<char>> means_;
  std::vector<char> turned_;
};

}  // namespace trireme::exchange
