// Is the work of a ring of attention even? Computes what each rank of a ring computes, forward and
// backward, one rank after the other, and prints the slowest by the mean.
//
//     context_blocks POSITIONS RANKS [ROUNDS]
//
//     {"bench":"context_blocks","positions":4096,"ranks":4,"slowest_over_mean":1.008,...}
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "trireme/mesh/guard.h"
#include "trireme/nn/attention_block.h"
#include "trireme/nn/ring_blocks.h"

namespace {

using namespace trireme;
using Clock = std::chrono::steady_clock;

/// All blocks of one rank, forward and backward, in seconds.
double seconds_of(const std::vector<at::Tensor>& all, int size, int rank) {
  const auto of = [&](const at::Tensor& x, const Positions& positions) {
    return x.index_select(2, at::tensor(positions.each(), at::kLong));
  };
  const int64_t whole = all[0].size(2);
  const Positions mine = head_and_tail(whole, size, rank);
  const at::Tensor q = of(all[0], mine);
  std::vector<std::pair<at::Tensor, at::Tensor>> keys;
  for (int other = 0; other < size; ++other) {
    const Positions theirs = head_and_tail(whole, size, other);
    keys.emplace_back(of(all[1], theirs), of(all[2], theirs));
  }
  const auto begin = Clock::now();
  for (int other = 0; other < size; ++other) {
    for (const nn::RingBlock& block : nn::ring_blocks(mine, head_and_tail(whole, size, other))) {
      const auto& [k, v] = keys[static_cast<std::size_t>(other)];
      const auto part = [&](const at::Tensor& x, Range columns) {
        return x.narrow(2, columns.begin, columns.count);
      };
      const nn::BlockMask mask{.causal = block.causal};
      const at::Tensor some = part(q, block.queries);
      const auto y = nn::block_attention(some, part(k, block.keys), part(v, block.keys), mask);
      nn::block_gradients(y.out, some, part(k, block.keys), part(v, block.keys), y, mask);
    }
  }
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int measure(const std::vector<std::string>& args) {
  const int64_t positions = std::stoll(args.at(0));
  const int size = std::stoi(args.at(1)), rounds = args.size() > 2 ? std::stoi(args[2]) : 7;
  at::set_num_threads(1);
  const at::NoGradGuard guard;
  std::vector<at::Tensor> all;
  for (int i = 0; i < 3; ++i) all.push_back(torch::randn({1, 4, positions, 64}));
  std::vector<std::vector<double>> times(static_cast<std::size_t>(size));
  for (int round = 0; round < rounds; ++round)
    for (int rank = 0; rank < size; ++rank)
      times[static_cast<std::size_t>(rank)].push_back(seconds_of(all, size, rank) * 1e3);
  std::vector<double> medians;
  for (std::vector<double>& one : times) {
    std::ranges::sort(one);
    medians.push_back(one[one.size() / 2]);
  }
  const double mean = std::accumulate(medians.begin(), medians.end(), 0.0) / size;
  fmt::print(
      "{{\"bench\":\"context_blocks\",\"positions\":{},\"ranks\":{},\"slowest_over_mean\":{:.4f},"
      "\"ms\":[{:.2f}]}}\n",
      positions, size, *std::ranges::max_element(medians) / mean, fmt::join(medians, ","));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return trireme::guard([&] { return measure({argv + 1, argv + argc}); });
}
