#include "trireme/parallel/compressed_reducer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <chrono>
#include <thread>

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

/// A block of the same shapes, in memory of its own.
GradientBlock copy_of(const GradientBlock& block) {
  GradientBlock copy = block;
  if (copy.data.defined()) copy.data = copy.data.clone();
  for (at::Tensor& one : copy.whole) one = one.clone();
  for (at::Tensor& one : copy.shards) one = at::empty_like(one);
  return copy;
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
      factors_(options_.rank, options_.seed) {
  check(options_);
}

bool CompressedReducer::is_compressed(const GradientPlace& place) const {
  if (place.numel() == 0) return false;
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
  made.first = first;
  if (!made.second) made.second = first.split(first.name() + ".back", 0, first.rank());
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
  Lane& lane = found->second;
  const auto kind = kind_for(block, over, lane);
  const auto is_kept = [&](const BlockMember& one) { return !is_compressed(*one.place); };
  if (!kind || std::ranges::all_of(block.members, is_kept))
    return inner_->start(std::move(block), over);
  advance(lane);
  const auto pending = std::make_shared<Pending>();
  if (std::ranges::any_of(block.members, is_kept)) start_kept(block, over, *pending);
  const SumContext context = context_of(block, over, lane);
  pending->sum = start_sum(std::move(block), context, *kind);
  lane.pending.push_back(pending);
  return {comm::Work(), [this, &lane, pending] { finish(lane, pending); }};
}

SumContext CompressedReducer::context_of(const GradientBlock& block, const RankSet& over,
                                         const Lane& lane) {
  return {.first = group(over, block.lane),
          .second = *lane.second,
          .residuals = options_.feedback ? &residuals_ : nullptr,
          .seed = options_.seed,
          .step = residuals_.steps(),
          .again = again_[name_of(block)]++};
}

/// Takes the gradients that are not compressed out of a block, and starts to sum them.
void CompressedReducer::start_kept(GradientBlock& block, const RankSet& over, Pending& pending) {
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
    pending.put_kept = [views, sum = kept.data] {
      int64_t begin = 0;
      for (const at::Tensor& one : views) {
        one.copy_(sum.narrow(0, begin, one.numel()));
        begin += one.numel();
      }
    };
  }
  pending.kept = inner_->start(std::move(kept), over);
  block = std::move(rest);
}

std::unique_ptr<CompressedSum> CompressedReducer::start_sum(GradientBlock block,
                                                            const SumContext& context,
                                                            Compression kind) {
  if (options_.own != nullptr) return start_sliced_sum(std::move(block), context, {options_.own});
  if (kind == Compression::RandomK)
    return start_random_sum(std::move(block), context, options_.ratio);
  if (kind == Compression::PowerSgd) return start_low_rank_sum(std::move(block), context, factors_);
  auto& by = compressors_[{kind, context.first.size()}];
  if (by.there == nullptr) by = make(kind, options_.ratio, context.first.size());
  return start_sliced_sum(std::move(block), context, by);
}

/// What a block is compressed by; nullopt: it travels as it is.
std::optional<Compression> CompressedReducer::kind_for(const GradientBlock& block,
                                                       const RankSet& over, Lane& lane) {
  if (options_.kind != Compression::Auto || options_.own != nullptr) return options_.kind;
  const uint64_t name = name_of(block);
  auto kind = choice_.find(name);
  if (!kind && residuals_.steps() == 0) return {};  // buckets are in another order after this step
  if (!kind) {
    for (const auto& one : lane.pending) start_second(*one);
    kind = choice_.measure(name, bytes_of(block), group(over, block.lane), [&](Compression by) {
      GradientBlock copy = copy_of(block);
      if (by == Compression::None) return inner_->start(std::move(copy), over).wait();
      const SumContext context{.first = group(over, block.lane), .second = *lane.second};
      const auto sum = start_sum(std::move(copy), context, by);
      sum->start_second();
      sum->finish();
    });
  }
  return *kind == Compression::None ? std::nullopt : kind;
}

void CompressedReducer::start_second(Pending& one) {
  if (!std::exchange(one.second, true)) one.sum->start_second();
}

/// Starts the second rounds of blocks whose first has arrived, as far as the order allows.
void CompressedReducer::advance(Lane& lane) {
  if (lane.pending.empty()) return;
  for (const auto& ranks : {lane.first, lane.second}) ranks->carrier()->step();
  for (const auto& one : lane.pending) {
    if (!one->second && !one->sum->arrived()) return;
    start_second(*one);
  }
}

void CompressedReducer::advance() {
  for (auto& [key, lane] : lanes_) advance(lane);
}

/// Waits until nothing but the last round of a sum can be missing. Ranks may wait for blocks of
/// different lanes at the same time, and each needs the other's second rounds: so while one lane is
/// waited for, all go on. A world that fails ends the loop (`arrived` throws), and so does the
/// timeout of the group: the plain wait that follows says who is missing.
void CompressedReducer::wait_in_all_lanes(const Lane& waited, const Pending& one) {
  constexpr std::chrono::microseconds kPause{20};
  const auto end = std::chrono::steady_clock::now() + waited.second->carrier()->timeout();
  while (!one.second || !one.sum->arrived()) {
    if (std::chrono::steady_clock::now() > end) return;
    for (auto& [key, lane] : lanes_) advance(lane);
    std::this_thread::sleep_for(kPause);
  }
}

/// Completes a sum; the second rounds of those before it start first.
void CompressedReducer::finish(Lane& lane, const std::shared_ptr<Pending>& one) {
  const auto busy =
      std::ranges::count_if(lanes_, [](const auto& each) { return !each.second.pending.empty(); });
  if (busy > 1) wait_in_all_lanes(lane, *one);
  for (const auto& earlier : lane.pending) {
    start_second(*earlier);
    if (earlier == one) break;
  }
  std::erase(lane.pending, one);
  one->sum->finish();
  one->kept.wait();
  if (one->put_kept) one->put_kept();
}

void CompressedReducer::expect(const ExpectedStep& step) {
  settle();
  residuals_.expect(step);
}

void CompressedReducer::end_step(double weight) {
  settle();  // a step without gradients
  residuals_.end_step(weight);
  if (weight == 0) undo_step();
}

void CompressedReducer::undo_step() {
  residuals_.undo_step();
  factors_.undo_step();
  again_.clear();
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
