#include "trireme/nn/rotary.h"

#include <torch/autograd.h>

#include "trireme/comm/dtype.h"
#include "trireme/core/error.h"
#include "trireme/nn/attention.h"
#include "trireme/nn/rows.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

/// Tables of 16 bits would lose positions.
at::ScalarType table_dtype(const at::Tensor& x) {
  return at::promote_types(x.scalar_type(), at::kFloat);
}

void turn_on_cpu(const at::Tensor& from, const at::Tensor& to, const cuda::RotaryHeads& heads,
                 double sign) {
  each_float(from.scalar_type(), [&]<class T>(T) {
    const TurnedRows<T> how{.cosines = heads.cosines.data_ptr<T>(),
                            .sines = heads.sines.data_ptr<T>(),
                            .positions = from.size(1),
                            .head = 2 * heads.cosines.size(1),
                            .turned = heads.q + heads.kv,
                            .others = heads.kv,
                            .neighbours = heads.neighbours};
    over_rows(from, [&](int64_t begin, int64_t end) {
      row_kernels<T>().turn(how, from.data_ptr<T>(), to.data_ptr<T>(), static_cast<T>(sign), begin,
                            end);
    });
  });
}

/// By libtorch's operations.
at::Tensor turn_plainly(const at::Tensor& qkv, const cuda::RotaryHeads& heads, double sign) {
  const int64_t B = qkv.size(0), T = qkv.size(1), half = heads.cosines.size(1);
  const int64_t all = heads.q + 2 * heads.kv, turned = heads.q + heads.kv;
  // A pair is a row of two, or a column of two.
  const at::Tensor pairs = heads.neighbours ? qkv.view({B, T, all, half, 2})
                                            : qkv.view({B, T, all, 2, half}).transpose(3, 4);
  const at::Tensor parts = pairs.narrow(2, 0, turned).to(table_dtype(qkv));
  const at::Tensor a = parts.select(4, 0), b = parts.select(4, 1);
  const at::Tensor c = heads.cosines.unsqueeze(1), s = sign * heads.sines.unsqueeze(1);
  const at::Tensor out =
      at::stack({a * c - b * s, b * c + a * s}, heads.neighbours ? 4 : 3).to(qkv.scalar_type());
  return at::cat({out.flatten(2), qkv.narrow(2, turned * 2 * half, heads.kv * 2 * half)}, 2);
}

bool on_gpu_in_16_bits(const at::Tensor& qkv) {
  return qkv.is_cuda() && comm::is_half(qkv.scalar_type());
}

/// What backward needs.
struct RotaryContext : torch::CustomClassHolder {
  cuda::RotaryHeads heads;
  double sign = 1;
};

struct TurnFunction : ag::Function<TurnFunction> {
  enum class Into : uint8_t { Itself, Copy };

  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& qkv,
                            const cuda::RotaryHeads& heads, double sign, Into into) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto holder = c10::make_intrusive<RotaryContext>();
    holder->heads = heads;
    holder->sign = sign;
    context->saved_data["heads"] = c10::IValue::make_capsule(holder);
    if (into == Into::Copy) return turned_copy(qkv, heads, sign);
    context->mark_dirty({qkv});
    if (on_gpu_in_16_bits(qkv))
      cuda::rotate(qkv, heads);
    else
      turn_on_cpu(qkv, qkv, heads, sign);
    return qkv;
  }

  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const auto holder =
        c10::static_intrusive_pointer_cast<RotaryContext>(context->saved_data["heads"].toCapsule());
    return {apply(gradients[0].contiguous(), holder->heads, -holder->sign, Into::Copy), {}, {}, {}};
  }
};

}  // namespace

Rotary::Rotary(RotaryOptions options) : options_(options) {
  core::check(options.head > 0 && options.head % 2 == 0,
              "rotary positions: a head of {} elements has no pairs; its width must be even",
              options.head);
  core::check(options.scaling != RotaryScaling::Dynamic || options.head > 2,
              "rotary positions: dynamic scaling needs heads of 4 elements at least, not {}",
              options.head);
}

void Rotary::make_tables(int64_t positions, int64_t length, const at::TensorOptions& like) const {
  const RotaryFrequencies frequencies = rotary_frequencies(options_, length);
  const at::Tensor angles =
      at::outer(at::arange(positions, at::kDouble), at::tensor(frequencies.radians, at::kDouble));
  cosines_ = (angles.cos() * frequencies.amplitude).to(like.device(), like.dtype());
  sines_ = (angles.sin() * frequencies.amplitude).to(like.device(), like.dtype());
  length_ = length;
  picked_cosines_ = picked_sines_ = at::Tensor();
}

/// Makes the tables anew if they do not reach to `end`, or are for another length, dtype or device.
void Rotary::require_tables(int64_t end, const at::Tensor& qkv) const {
  const bool depends = options_.scaling == RotaryScaling::Dynamic;
  const int64_t length = depends ? std::max(end, options_.trained_on) : 0;
  const auto like = qkv.options().dtype(table_dtype(qkv));
  if (!cosines_.defined() || cosines_.size(0) < end || length_ != length ||
      cosines_.scalar_type() != table_dtype(qkv) || cosines_.device() != qkv.device()) {
    // A text that grows by a token at a time does not make them every time.
    const int64_t twice = cosines_.defined() && !depends ? 2 * cosines_.size(0) : 0;
    make_tables(std::max({end, options_.trained_on, twice}), length, like);
  }
}

cuda::RotaryHeads Rotary::heads(const at::Tensor& qkv, const Positions& positions, int64_t q,
                                int64_t kv) const {
  const at::NoGradGuard no_gradients;
  const Positions mine = positions.of(qkv.size(1));
  require_tables(mine.whole(), qkv);
  cuda::RotaryHeads heads{.q = q,
                          .kv = kv,
                          .neighbours = options_.pairs == RotaryPairs::Neighbours,
                          .cosines = {},
                          .sines = {}};
  if (mine.ranges().size() < 2) {
    heads.cosines = cosines_.narrow(0, mine.first(), qkv.size(1));
    heads.sines = sines_.narrow(0, mine.first(), qkv.size(1));
    return heads;
  }
  if (!picked_cosines_.defined() || picked_ != mine) {
    const at::Tensor rows = at::tensor(mine.each(), at::kLong).to(qkv.device());
    picked_cosines_ = cosines_.index_select(0, rows);
    picked_sines_ = sines_.index_select(0, rows);
    picked_ = mine;
  }
  heads.cosines = picked_cosines_;
  heads.sines = picked_sines_;
  return heads;
}

cuda::RotaryHeads Rotary::heads_at(const at::Tensor& moving, int64_t end, const at::Tensor& qkv,
                                   int64_t q, int64_t kv) const {
  const at::NoGradGuard no_gradients;
  core::check(options_.scaling != RotaryScaling::Dynamic,
              "rotary positions: dynamic scaling depends on the length of the text, so a call "
              "cannot be repeated at another position");
  require_tables(end, qkv);
  return {.q = q,
          .kv = kv,
          .neighbours = options_.pairs == RotaryPairs::Neighbours,
          .cosines = cosines_.index_select(0, moving),
          .sines = sines_.index_select(0, moving)};
}

at::Tensor turned(const at::Tensor& qkv, const cuda::RotaryHeads& heads) {
  const bool has_kernel =
      on_gpu_in_16_bits(qkv) || (qkv.is_cpu() && qkv.scalar_type() == table_dtype(qkv));
  if (!has_kernel) return turn_plainly(qkv, heads, 1);
  return TurnFunction::apply(qkv.contiguous(), heads, 1.0, TurnFunction::Into::Itself);
}

at::Tensor turned_copy(const at::Tensor& qkv, const cuda::RotaryHeads& heads, double sign) {
  if (on_gpu_in_16_bits(qkv) && sign < 0) {
    const auto [q, k, v] = parts_of(qkv, heads.q, heads.kv);
    return cuda::unrotated_gradient(q, k, v, heads);
  }
  if (!qkv.is_cpu() || qkv.scalar_type() != table_dtype(qkv)) return turn_plainly(qkv, heads, sign);
  const at::Tensor to = at::empty_like(qkv);
  turn_on_cpu(qkv, to, heads, sign);
  return to;
}

}  // namespace trireme::nn
