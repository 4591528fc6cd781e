#include "trireme/parallel/compressed_reducer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>

#include <algorithm>

#include "trireme/compress/factory.h"
#include "trireme/core/error.h"
#include "trireme/core/hash.h"

namespace trireme::parallel {

namespace {

compress::Kind kind_of(Compression kind) {
  switch (kind) {
    case Compression::Bf16: return compress::Kind::Bf16;
    case Compression::Int8: return compress::Kind::Int8;
    case Compression::OneBit: return compress::Kind::OneBit;
    case Compression::TopK: return compress::Kind::TopK;
    default: return compress::Kind::Fp16;
  }
}

/// The compressor of a kind for sums over so many ranks. The k largest elements of each rank are
/// different ones: their sum has at most ranks x k elements, and all of them are sent back.
ByteCompressor make(Compression kind, double ratio, int ranks) {
  ByteCompressor made;
  made.there = compress::make_compressor({.kind = kind_of(kind), .ratio = ratio});
  if (kind != Compression::TopK) return made;
  made.exact_back = [one = made.there, ranks](int64_t elements) {
    constexpr int64_t kItemBytes = sizeof(uint32_t) + sizeof(float);  // an index and a value
    const int64_t sent = one->num_bytes(elements, at::kFloat) / kItemBytes;
    const double most = static_cast<double>(sent * ranks) / static_cast<double>(elements);
    return compress::make_compressor({.kind = compress::Kind::TopK, .ratio = std::min(1.0, most)});
  };
  return made;
}

uint64_t name_of(const GradientBlock& block) {
  std::string names;
  for (const BlockMember& one : block.members) names += one.place->key() + '\n';
  return core::hash64(names);
}

/// A block of the same shapes on another device; on `kMeta` it has no memory.
GradientBlock like(GradientBlock block, at::Device device) {
  const auto made = [&](const at::Tensor& one) {
    return at::ones(one.sizes(), one.options().device(device));
  };
  if (block.data.defined()) block.data = made(block.data);
  for (at::Tensor& one : block.whole) one = made(one);
  for (at::Tensor& one : block.shards) one = made(one);
  return block;
}

at::Device device_of(const GradientBlock& block) {
  return block.data.defined() ? block.data.device() : block.whole.front().device();
}

int64_t bytes_of(const GradientBlock& block) {
  int64_t bytes = 0;
  for (const BlockMember& one : block.members)
    bytes += one.place->numel() * (one.place->dtype == core::DType::Float64 ? 8 : 4);
  return bytes;
}

}  // namespace

CompressedReducer::CompressedReducer(const std::shared_ptr<Reducer>& inner, CompressOptions options)
    : Reducer(inner),
      inner_(inner),
      options_(std::move(options)),
      factors_(options_.rank, options_.min_saving, options_.seed) {
  check(options_);
}

bool CompressedReducer::is_compressed(const GradientPlace& place) const {
  if (place.numel() == 0 || place.repeats) return false;
  if (options_.own == nullptr && options_.kind == Compression::PowerSgd && !factors_.fits(place))
    return false;
  return std::ranges::none_of(
      options_.keep, [&](const std::string& pattern) { return matches_name(pattern, place.name); });
}

void CompressedReducer::announce(const std::vector<GradientPlacePtr>& places, const RankSet& over,
                                 int lane) {
  const comm::Communicator& first = group(over, lane);
  if (first.size() == 1) return;
  for (const GradientPlacePtr& one : places) {
    if (!is_compressed(*one)) continue;
    core::check(one->dtype == core::DType::Float32 || one->dtype == core::DType::Float64,
                "compress: the gradient of '{}' ({} elements) is {}; compressors carry float32 and "
                "float64 only. Name it in `keep`",
                one->name, one->numel(), to_string(one->dtype));
    if (options_.feedback) residuals_.add(one);
    if (options_.kind == Compression::PowerSgd && options_.own == nullptr) factors_.add(one);
  }
  Lane& made = lanes_[{over, lane}];
  if (made.first) return;
  made.first = first.split(first.name() + ".there", 0, first.rank());
  made.second = first.split(first.name() + ".back", 0, first.rank());
}

void CompressedReducer::settle() {
  if (!residuals_.settle()) return;
  factors_.settle();
  again_.clear();
}

StartedSum CompressedReducer::start(GradientBlock block, const RankSet& over) {
  const auto found = lanes_.find({over, block.lane});
  if (block.members.empty() || found == lanes_.end()) return inner_->start(std::move(block), over);
  settle();
  if (residuals_.steps() < options_.warmup || residuals_.weightless())
    return inner_->start(std::move(block), over);
  const auto is_kept = [&](const BlockMember& one) { return !is_compressed(*one.place); };
  if (std::ranges::all_of(block.members, is_kept)) return inner_->start(std::move(block), over);
  Lane& lane = found->second;
  const auto kind = kind_for(block, lane);
  if (!kind) return inner_->start(std::move(block), over);
  const auto kept = std::make_shared<Kept>();
  if (std::ranges::any_of(block.members, is_kept)) *kept = start_kept(block, over);
  residuals_.fix_divisor();  // here, because it may have to wait for the sum of weights
  const SumContext context = context_of(block, lane);
  const at::Device device = device_of(block);
  const auto sum = thread_.start(*lane.first, device, sum_of(std::move(block), context, *kind));
  return {comm::Work(), [this, sum, kept] {
            thread_.wait(*sum);
            kept->sum.wait();
            if (kept->put) kept->put();
          }};
}

SumContext CompressedReducer::context_of(const GradientBlock& block, const Lane& lane) {
  return {.first = *lane.first,
          .second = *lane.second,
          .residuals = options_.feedback ? &residuals_ : nullptr,
          .seed = options_.seed,
          .step = residuals_.steps(),
          .again = again_[name_of(block)]++};
}

/// Takes the gradients that are not compressed out of a block, and starts to sum them.
CompressedReducer::Kept CompressedReducer::start_kept(GradientBlock& block, const RankSet& over) {
  Kept started;
  GradientBlock rest = block, kept = block;
  for (GradientBlock* one : {&rest, &kept}) {
    one->members.clear();
    one->whole.clear();
    one->shards.clear();
    one->rows.clear();
  }
  std::vector<at::Tensor> views;
  for (std::size_t i = 0; i < block.members.size(); ++i) {
    const auto& [place, begin] = block.members[i];
    GradientBlock& to = is_compressed(*place) ? rest : kept;
    to.members.push_back(block.members[i]);
    if (block.data.defined()) {
      if (&to == &kept) views.push_back(block.data.narrow(0, begin, place->numel()));
      continue;
    }
    to.whole.push_back(block.whole[i]);
    to.shards.push_back(block.shards[i]);
    to.rows.push_back(block.rows[i]);
  }
  kept.members.clear();  // it travels as it is
  if (block.data.defined()) {
    kept.data = at::cat(views);
    started.put = [views, sum = kept.data] {
      int64_t begin = 0;
      for (const at::Tensor& one : views) {
        one.copy_(sum.narrow(0, begin, one.numel()));
        begin += one.numel();
      }
    };
  }
  started.sum = inner_->start(std::move(kept), over);
  block = std::move(rest);
  return started;
}

/// What starts the sum of a block.
SumThread::Begin CompressedReducer::sum_of(GradientBlock block, const SumContext& context,
                                           Compression kind) {
  if (options_.own == nullptr && kind == Compression::RandomK)
    return [block = std::move(block), context, ratio = options_.ratio] {
      return start_random_sum(block, context, ratio);
    };
  if (options_.own == nullptr && kind == Compression::PowerSgd)
    return [block = std::move(block), context, this] {
      return start_low_rank_sum(block, context, factors_);
    };
  ByteCompressor by{options_.own};
  if (options_.own == nullptr) {
    ByteCompressor& known = compressors_[{kind, context.first.size()}];
    if (known.there == nullptr) known = make(kind, options_.ratio, context.first.size());
    by = known;
  }
  return [block = std::move(block), context, by] { return start_sliced_sum(block, context, by); };
}

/// What a block is compressed by; nullopt: it travels as it is.
std::optional<Compression> CompressedReducer::kind_for(const GradientBlock& block, Lane& lane) {
  if (options_.kind != Compression::Auto || options_.own != nullptr) return options_.kind;
  const uint64_t name = name_of(block);
  const auto kind = choice_.find(name);
  // Buckets are in another order after the first step.
  if (!kind && residuals_.steps() > 0 &&
      std::ranges::find(lane.unmeasured, name, &UnmeasuredBlock::name) == lane.unmeasured.end())
    lane.unmeasured.push_back({name, like(block, at::kMeta), device_of(block)});
  return kind == Compression::None ? std::nullopt : kind;
}

/// Chooses what a block is compressed by from now on. No sum is under way.
void CompressedReducer::measure(const UnmeasuredBlock& one, const RankSet& over, const Lane& lane) {
  const SumContext context{.first = *lane.first, .second = *lane.second};
  choice_.measure(one.name, bytes_of(one.shapes), group(over, one.shapes.lane),
                  [&](Compression by) {
                    GradientBlock block = like(one.shapes, one.device);
                    if (by == Compression::None)
                      return inner_->start(std::move(block), over).wait();
                    const auto sum = sum_of(std::move(block), context, by)();
                    sum->start_second();
                    sum->finish();
                  });
}

void CompressedReducer::expect(const ExpectedStep& step) {
  settle();
  residuals_.expect(step);
}

/// Measures, too, if `auto` has blocks to choose for: lanes in the order of their keys, which is
/// the same on all ranks.
void CompressedReducer::end_step(double weight) {
  settle();  // a step without gradients
  residuals_.end_step(weight);
  if (weight == 0) undo_step();
  for (auto& [key, lane] : lanes_)
    for (const UnmeasuredBlock& one : std::exchange(lane.unmeasured, {}))
      measure(one, key.first, lane);
}

void CompressedReducer::undo_step() {
  residuals_.undo_step();
  factors_.undo_step();
  again_.clear();
}

void CompressedReducer::drop_step() {
  if (!residuals_.has_ended()) undo_step();
  for (auto& [key, lane] : lanes_) lane.unmeasured.clear();
}

std::vector<ReducerState> CompressedReducer::states() {
  settle();
  auto all = residuals_.states();
  for (ReducerState& one : factors_.states()) all.push_back(std::move(one));
  return all;
}

core::Json CompressedReducer::state() {
  settle();
  core::Json json = residuals_.state();
  json["chosen"] = choice_.state();
  return json;
}

void CompressedReducer::restore(const core::Json& saved) {
  residuals_.restore(saved);
  if (saved.contains("chosen")) choice_.restore(saved.at("chosen"));
}

std::shared_ptr<Reducer> make_reducer(const Mesh& mesh, const CompressOptions& options) {
  auto plain = make_reducer(mesh);
  if (!options.compresses()) return plain;
  return std::make_shared<CompressedReducer>(plain, options);
}

}  // namespace trireme::parallel
