#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/cuda/rotary.h"
#include "trireme/layout/positions.h"

namespace trireme::nn {

/// B rows, T positions, H heads, K kv heads, D elements of a head.
struct QueryKeyValue {
  at::Tensor q, k, v;  ///< [B, H, T, D] and [B, K, T, D]: views of one projection
};

/// The parts of a projection [B, T, (H + 2K) D]: q of all heads, then k, then v.
QueryKeyValue parts_of(const at::Tensor& qkv, int64_t heads, int64_t kv_heads);

/// Which positions a position sees: itself and those before it, or all.
enum class Sees : uint8_t { Past, All };

/// Which of the keys at some positions the queries at others see: bool [B or 1, 1, queries, keys].
/// `documents`: for each query of each row, int64 [B, queries], the position at which its document
/// begins; undefined: a row is one document.
at::Tensor visible(const Positions& queries, const Positions& keys, const at::Tensor& documents,
                   c10::Device device);

/// Attention whose scores [B, H, queries, keys] are computed in full, [B, H, queries, D].
/// `seen`: as `visible` gives it; undefined: all. `keep`: a mask of dropout, or undefined.
at::Tensor plain_attention(const QueryKeyValue& parts, const at::Tensor& seen,
                           const at::Tensor& keep);

/// Attention to what `seen` says, by libtorch, [B, H, queries, D].
at::Tensor masked_attention(const QueryKeyValue& parts, const at::Tensor& seen);

/// softmax(q k^T / sqrt(D)) v of what each position sees, as [B, T, H D].
/// Differentiable. With `rotary`, q and k turn by their positions first: in the memory of `qkv`,
/// which nobody else may need any more.
///
/// On a GPU in 16 bits it is cuDNN's kernel, which reads q, k and v where they are and is twice as
/// fast as torch's own. Its backward does not give the same bits every time: if libtorch was told
/// to be deterministic, torch chooses another.
at::Tensor causal_attention(const at::Tensor& qkv, int64_t heads, int64_t kv_heads,
                            const cuda::RotaryHeads* rotary = nullptr, Sees sees = Sees::Past);

}  // namespace trireme::nn
