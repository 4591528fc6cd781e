#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::nn {

/// Where the rows of tokens are, when each token has one for each of its choices and they are
/// sorted in some other way. Element i of `order` says which of tokens x choices row i is; choices
/// that are in no row were dropped.
struct TokenOrder {
  TokenOrder() = default;
  TokenOrder(at::Tensor of_rows, int64_t num_tokens, int64_t per_token);

  at::Tensor order;    ///< [rows]
  at::Tensor inverse;  ///< [tokens x choices]: the row of each, or -1
  int64_t tokens = 0, choices = 0;

  /// The token of each row.
  at::Tensor token_of() const;
};

/// A row of x, [tokens, width], for each choice: [rows, width]. Differentiable.
at::Tensor rows_of_tokens(const at::Tensor& x, const TokenOrder& order);

/// For each token the sum of its rows, [rows, width], multiplied by `weights`, [tokens, choices].
/// It is added up in the dtype of the weights, in the order of the choices. Differentiable.
at::Tensor weighted_rows(const at::Tensor& rows, const at::Tensor& weights,
                         const TokenOrder& order);

}  // namespace trireme::nn
