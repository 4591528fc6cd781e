#include "trireme/parallel/compress_choice.h"

#include <fmt/ranges.h>

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

#include "trireme/core/error.h"
#include "trireme/core/units.h"

namespace trireme::parallel {

namespace {

/// Compression must take at most this part of the plain sum's time: encoding also takes cores from
/// backward, which waits for a plain sum only at its end.
constexpr double kWorthIt = 0.75;

constexpr int kTimes = 3;  // the first one also pays for memory

}  // namespace

std::string_view to_string(Compression kind) {
  constexpr std::string_view kNames[] = {"none", "fp16",    "bf16",     "int8", "onebit",
                                         "topk", "randomk", "powersgd", "auto"};
  return kNames[static_cast<std::size_t>(kind)];
}

void check(const CompressOptions& options) {
  core::check(options.ratio > 0 && options.ratio <= 1,
              "compress: ratio = {} must be more than 0 and at most 1", options.ratio);
  core::check(options.rank >= 1, "compress: rank = {} of powersgd must be at least 1",
              options.rank);
  core::check(options.warmup >= 0, "compress: warmup = {} must be at least 0", options.warmup);
}

std::vector<Compression> CompressChoice::candidates() {
  return {Compression::None, Compression::Bf16, Compression::Int8};
}

std::optional<Compression> CompressChoice::find(uint64_t block) const {
  const auto found = chosen_.find(block);
  return found == chosen_.end() ? std::nullopt : std::optional(found->second);
}

Compression CompressChoice::measure(uint64_t block, int64_t bytes, const comm::Communicator& ranks,
                                    const std::function<void(Compression)>& sum) {
  const auto all = candidates();
  at::Tensor seconds = at::zeros({static_cast<int64_t>(all.size())}, at::kDouble);
  auto* of = seconds.data_ptr<double>();
  for (std::size_t i = 0; i < all.size(); ++i)
    for (int time = 0; time < kTimes; ++time) {
      ranks.barrier();
      const auto begin = std::chrono::steady_clock::now();
      sum(all[i]);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      of[i] = time == 0 ? took.count() : std::min(of[i], took.count());
    }
  ranks.all_reduce(seconds, comm::ReduceOp::Max).wait();
  auto best = static_cast<std::size_t>(std::min_element(of, of + all.size()) - of);
  if (of[best] > kWorthIt * of[0]) best = 0;
  chosen_[block] = all[best];
  std::vector<std::string> times;
  for (std::size_t i = 0; i < all.size(); ++i)
    times.push_back(fmt::format("{} {:.2f} ms", to_string(all[i]), 1e3 * of[i]));
  news_ += fmt::format("compress: {} of gradients over '{}': {} ({})\n", core::format_bytes(bytes),
                       ranks.name(), to_string(all[best]), fmt::join(times, ", "));
  return all[best];
}

core::Json CompressChoice::state() const {
  core::Json json = core::Json::object();
  for (const auto& [block, kind] : chosen_)
    json[fmt::format("{:016x}", block)] = static_cast<int>(kind);
  return json;
}

void CompressChoice::restore(const core::Json& saved) {
  chosen_.clear();
  for (const auto& [block, kind] : saved.items())
    chosen_[std::stoull(block, nullptr, 16)] = static_cast<Compression>(kind.get<int>());
}

}  // namespace trireme::parallel
