// The sum of a block through a compressor of bytes, over R ranks.
//
//   rank 0   x0 = | a0 | b0 | c0 |      every rank encodes the slice of each owner (with feedback)
//   rank 1   x1 = | a1 | b1 | c1 |      ── all-to-all of bytes ──>
//   rank 2   x2 = | a2 | b2 | c2 |
//
//   owner 0  decodes a0, a1, a2 and adds them in rank order      a = a0 + a1 + a2
//   owner 1                                                      b = b0 + b1 + b2
//   owner 2                                                      c = c0 + c1 + c2
//                                       reduce-scatter ends here: the slices are the ranks' rows
//   each owner encodes its sum          ── all-gather of bytes ──>
//   all ranks, the owner too, decode the same bytes: all get the same bits      | a | b | c |
//
// What the way back does not say, the owner adds to its own residual of these elements: it is sent
// with the next gradient. (DoubleSqueeze, Tang et al. 2019, keeps it apart and adds it to the next
// sum. Either way all that was not delivered is in some residual, which is what their proof needs;
// this one needs no memory of its own, and survives another order of buckets and another mesh.)
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include "trireme/core/hash.h"
#include "trireme/parallel/compressed_sum.h"

namespace trireme::parallel {

namespace {

using compress::Compressor;

enum class Direction : uint8_t { There, Back };

class SlicedSum final : public CompressedSum {
 public:
  SlicedSum(GradientBlock block, const SumContext& context, ByteCompressor compressor)
      : block_(std::move(block)),
        context_(context),
        there_(std::move(compressor.there)),
        exact_back_(std::move(compressor.exact_back)),
        mine_(context.first.rank()),
        packed_(block_, {mine_, context.first.size()}, PackedBlock::Order::ByRank) {
    send_slices();
  }

  bool arrived() const override { return work_.done(); }

  void start_second() override {
    work_.wait();
    work_ = {};
    add_up();
    if (!packed_.scatters()) send_back();
  }

  void finish() override {
    work_.wait();
    if (packed_.scatters()) return packed_.put(sum_, packed_.slice_begin(mine_));
    at::Tensor all = at::empty({packed_.numel()}, packed_.dtype());
    int64_t from = 0, to = 0;
    for (std::size_t rank = 0; rank < back_bytes_.size(); ++rank) {
      const int64_t count = packed_.slices()[rank];
      decode(*back_for(count), bytes_.narrow(0, from, back_bytes_[rank]), all.narrow(0, to, count));
      from += back_bytes_[rank];
      to += count;
    }
    packed_.put(all);
  }

 private:
  int ranks() const { return context_.first.size(); }

  compress::BlockPlace place(Direction direction, int64_t first) const {
    const uint64_t words[] = {packed_.name(), static_cast<uint64_t>(mine_),
                              static_cast<uint64_t>(direction),
                              static_cast<uint64_t>(context_.again)};
    return {.seed = context_.seed,
            .stream = core::hash64(words, sizeof words),
            .step = context_.step,
            .first = first};
  }

  std::shared_ptr<const Compressor> back_for(int64_t count) const {
    return exact_back_ && count > 0 ? exact_back_(count) : there_;
  }

  static void decode(const Compressor& by, const at::Tensor& bytes, const at::Tensor& to) {
    if (to.numel() > 0) by.decode(bytes, to);
  }

  /// Encodes every slice and starts to send each to its owner.
  void send_slices() {
    const at::Tensor gradients = packed_.gradients();
    at::Tensor kept;
    if (context_.residuals != nullptr) kept = packed_.residuals(*context_.residuals);
    std::vector<at::Tensor> encoded;
    comm::Rows sent;
    int64_t begin = 0;
    for (const int64_t count : packed_.slices()) {
      const at::Tensor slice = gradients.narrow(0, begin, count);
      const auto at = place(Direction::There, begin);
      encoded.push_back(count == 0 ? at::empty({0}, at::kByte)
                        : kept.defined()
                            ? there_->encode_with_feedback(slice, kept.narrow(0, begin, count), at)
                            : there_->encode(slice, at));
      sent.push_back(encoded.back().numel());
      begin += count;
    }
    if (kept.defined()) packed_.keep(*context_.residuals, kept);
    // All ranks encode as many elements to as many bytes.
    const comm::Rows got(static_cast<std::size_t>(ranks()), sent[static_cast<std::size_t>(mine_)]);
    bytes_ = at::empty({got.front() * ranks()}, at::kByte);
    work_ = context_.first.all_to_all(bytes_, at::cat(encoded), got, sent);
  }

  /// The sum of this rank's slice, in the order of ranks.
  void add_up() {
    const int64_t count = packed_.slices()[static_cast<std::size_t>(mine_)];
    const int64_t each = bytes_.numel() / ranks();
    sum_ = at::empty({count}, packed_.dtype());
    at::Tensor one = at::empty_like(sum_);
    for (int rank = 0; rank < ranks(); ++rank) {
      decode(*there_, bytes_.narrow(0, rank * each, each), rank == 0 ? sum_ : one);
      if (rank > 0) sum_.add_(one);
    }
  }

  void send_back() {
    const int64_t begin = packed_.slice_begin(mine_);
    const auto at = place(Direction::Back, begin);
    at::Tensor encoded = at::empty({0}, at::kByte);
    if (sum_.numel() > 0 && context_.residuals != nullptr && !exact_back_) {
      const at::Tensor lost = at::zeros_like(sum_);
      encoded = there_->encode_with_feedback(sum_, lost, at);
      packed_.keep_more(*context_.residuals, lost, begin);
    } else if (sum_.numel() > 0) {
      encoded = back_for(sum_.numel())->encode(sum_, at);
    }
    sum_ = at::Tensor();
    int64_t total = 0;
    for (const int64_t count : packed_.slices()) {
      back_bytes_.push_back(count == 0 ? 0 : back_for(count)->num_bytes(count, packed_.dtype()));
      total += back_bytes_.back();
    }
    bytes_ = at::empty({total}, at::kByte);
    work_ = context_.second.all_gather(bytes_, encoded, back_bytes_);
  }

  GradientBlock block_;  // keeps its memory
  SumContext context_;
  std::shared_ptr<const Compressor> there_;
  ByteCompressor::Exact exact_back_;
  int mine_;
  PackedBlock packed_;
  at::Tensor bytes_, sum_;
  comm::Rows back_bytes_;
  comm::Work work_;  // last: it uses the others' memory
};

}  // namespace

std::unique_ptr<CompressedSum> start_sliced_sum(GradientBlock block, const SumContext& context,
                                                ByteCompressor compressor) {
  return std::make_unique<SlicedSum>(std::move(block), context, std::move(compressor));
}

}  // namespace trireme::parallel
