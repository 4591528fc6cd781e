#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/cuda/rotary.h"

namespace trireme::nn {

/// B rows, T positions, H heads, K kv heads, D elements of a head.
struct QueryKeyValue {
  at::Tensor q, k, v;  ///< [B, H, T, D] and [B, K, T, D]: views of one projection
};

/// The parts of a projection [B, T, (H + 2K) D]: q of all heads, then k, then v.
QueryKeyValue parts_of(const at::Tensor& qkv, int64_t heads, int64_t kv_heads);

/// Which positions a position sees: itself and those before it, or all.
enum class Sees : uint8_t { Past, All };

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
