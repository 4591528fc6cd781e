// Ring attention (Liu et al. 2023), with positions dealt so that causal work is even (Brandon et
// al. 2023, Zhu 2024). Rank r computes its queries against the keys of r, r - 1, r - 2, ...; while
// it does, the keys that come next are on their way from rank r - 1.
//
//            step 0       step 1       step 2       step 3
//   rank 0   0: causal    3: tail      2: tail      1: tail       j: block   keys of rank j, and
//   rank 1   1: causal    0: head      3: tail      2: tail       which queries or keys of them
//   rank 2   2: causal    1: head      0: head      3: tail       take part
//   rank 3   3: causal    2: head      1: head      0: head
//
// Rank r has piece r of the head of the sequence and piece 2 n - 1 - r of its tail. The keys of an
// earlier rank (j < r): all queries see its head piece, none its tail piece. Those of a later rank:
// only the queries of the tail see them, but both pieces. Either is half of a square, so that every
// step takes all ranks as long. Nothing but step 0 needs a mask.
//
// In backward, keys and values go round again, and so do their gradients: each rank adds its part,
// and after n steps they are home.
#include <torch/autograd.h>

#include <optional>

#include "trireme/nn/attention_block.h"
#include "trireme/nn/context_attention.h"
#include "trireme/nn/ring_blocks.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

struct RingContext : torch::CustomClassHolder {
  comm::Communicator group;
  std::vector<Positions> ranks;
  ContextCall call;

  RingContext(comm::Communicator of, std::vector<Positions> all, ContextCall one)
      : group(std::move(of)), ranks(std::move(all)), call(std::move(one)) {}

  int size() const { return group.size(); }
  /// The rank whose keys this one has at a step.
  int source(int step) const { return (group.rank() - step % size() + size()) % size(); }
  const Positions& positions_of(int rank) const { return ranks[static_cast<std::size_t>(rank)]; }

  /// What the queries of a block see of the keys of a rank; nothing if that is nothing.
  std::optional<BlockMask> mask_of(const RingBlock& block, int source, const at::Tensor& q) const;
};
using RingContextPtr = c10::intrusive_ptr<RingContext>;

std::optional<BlockMask> RingContext::mask_of(const RingBlock& block, int source,
                                              const at::Tensor& q) const {
  BlockMask mask{.causal = block.causal};
  const Positions queries = call.positions.narrow(block.queries);
  const Positions keys = positions_of(source).narrow(block.keys);
  if (call.documents.defined()) {
    const at::Tensor begins = call.documents.narrow(1, block.queries.begin, block.queries.count);
    const bool may_look = begins.is_cpu();  // on a GPU the host would have to wait
    const Range& last = keys.ranges().back();
    if (may_look && begins.min().item<int64_t>() >= last.begin + last.count) return std::nullopt;
    if (!may_look || begins.max().item<int64_t>() > keys.first()) {
      mask.hidden = visible(queries, keys, begins, q.device()).logical_not_();
      mask.causal = false;
    }
  }
  if (call.dropout) mask.keep = call.dropout({0, q.size(1)}, queries, keys);
  return mask;
}

/// Passes tensors around: to the next rank, from the one before. Both are in flight until `wait`.
class Exchange {
 public:
  Exchange() = default;
  Exchange(const RingContext& ring, at::Tensor out, at::Tensor in, int tag)
      : out_(std::move(out)), in_(std::move(in)) {
    const int next = (ring.group.rank() + 1) % ring.size();
    const int before = (ring.group.rank() + ring.size() - 1) % ring.size();
    if (in_.numel() > 0) received_ = ring.group.recv(in_, before, tag);
    if (out_.numel() > 0) sent_ = ring.group.send(out_, next, tag);
  }

  at::Tensor wait() {
    received_.wait();
    sent_.wait();
    out_ = at::Tensor();
    return std::move(in_);
  }

 private:
  at::Tensor out_, in_;
  comm::Work received_, sent_;
};

constexpr int kKeysTag = 0, kGradientsTag = 1;

/// Keys and values as one message, [2, B, K, T, D].
at::Tensor packed(const at::Tensor& k, const at::Tensor& v) {
  return at::stack({k, v});
}

at::Tensor room_for(const RingContext& ring, int source, const at::Tensor& like) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape[3] = ring.positions_of(source).count();
  return at::empty(shape, like.options());
}

/// Calls `body(source, keys and values)` for the keys of every rank, its own first, while the next
/// are on their way.
template <class Body>
void go_round(const RingContext& ring, at::Tensor kv, const Body& body) {
  for (int step = 0; step < ring.size(); ++step) {
    const int source = ring.source(step);
    std::optional<Exchange> exchange;
    if (step + 1 < ring.size())
      exchange.emplace(ring, kv, room_for(ring, ring.source(step + 1), kv), kKeysTag);
    body(source, kv);
    if (exchange) kv = exchange->wait();
  }
}

at::Tensor queries_of(const at::Tensor& x, const RingBlock& block) {
  return x.narrow(2, block.queries.begin, block.queries.count);
}

BlockAttention part_of(const BlockAttention& all, const RingBlock& block) {
  return {queries_of(all.out, block), queries_of(all.lse, block)};
}

struct RingAttention : ag::Function<RingAttention> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, RingContextPtr ring) {
    const auto wide = at::promote_types(q.scalar_type(), at::kFloat);
    BlockAttention all;
    go_round(*ring, packed(k, v), [&](int source, const at::Tensor& kv) {
      for (const RingBlock& block : ring_blocks(ring->call.positions, ring->positions_of(source))) {
        const auto mask = ring->mask_of(block, source, q);
        if (!mask) continue;
        const at::Tensor keys = kv.narrow(3, block.keys.begin, block.keys.count);
        BlockAttention more = block_attention(queries_of(q, block), keys[0], keys[1], *mask);
        if (!all.out.defined()) {  // of the own keys, which every query sees
          all = {more.out.to(wide), more.lse.to(wide)};
        } else {
          BlockAttention to = part_of(all, block);
          merge(to, more);
        }
      }
    });
    if (!all.out.defined())
      all = {at::empty_like(q), at::empty(q.sizes().slice(0, 3), q.options())};
    all.out = all.out.to(q.scalar_type());
    context->saved_data["ring"] = c10::IValue::make_capsule(ring);
    context->save_for_backward({q, k, v, all.out, all.lse});
    return all.out;
  }

  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "attention over a ring has no gradient of a gradient (create_graph); use "
                "context.kind = \"gather\"");
    const auto saved = context->get_saved_variables();
    const auto ring =
        c10::static_intrusive_pointer_cast<RingContext>(context->saved_data["ring"].toCapsule());
    const at::Tensor &q = saved[0], &dy = gradients[0];
    const BlockAttention all{saved[3], saved[4]};
    const auto wide = at::promote_types(q.scalar_type(), at::kFloat);
    at::Tensor dq = at::zeros_like(q, q.options().dtype(wide), at::MemoryFormat::Contiguous);
    std::optional<Exchange> coming;  // the gradients of the keys that are here
    go_round(*ring, packed(saved[1], saved[2]), [&](int source, const at::Tensor& kv) {
      at::Tensor dkv = at::zeros(kv.sizes(), kv.options().dtype(wide));
      for (const RingBlock& block : ring_blocks(ring->call.positions, ring->positions_of(source))) {
        const auto mask = ring->mask_of(block, source, q);
        if (!mask) continue;
        const at::Tensor keys = kv.narrow(3, block.keys.begin, block.keys.count);
        const BlockGradients more = block_gradients(queries_of(dy, block), queries_of(q, block),
                                                    keys[0], keys[1], part_of(all, block), *mask);
        queries_of(dq, block).add_(more.q);
        const at::Tensor place = dkv.narrow(3, block.keys.begin, block.keys.count);
        place[0].add_(more.k);
        place[1].add_(more.v);
      }
      if (coming) dkv.add_(coming->wait());
      // Those of the keys of the next step come; after the last step, those of the own keys.
      const int next = (source + ring->size() - 1) % ring->size();
      coming.emplace(*ring, dkv, room_for(*ring, next, dkv), kGradientsTag);
    });
    const at::Tensor home = coming->wait();
    return {dq.to(q.scalar_type()), home[0].to(q.scalar_type()), home[1].to(q.scalar_type()), {}};
  }
};

}  // namespace

at::Tensor ring_attention(const QueryKeyValue& parts, const comm::Communicator& group,
                          const std::vector<Positions>& ranks, const ContextCall& call) {
  return RingAttention::apply(parts.q, parts.k, parts.v,
                              c10::make_intrusive<RingContext>(group, ranks, call));
}

}  // namespace trireme::nn
