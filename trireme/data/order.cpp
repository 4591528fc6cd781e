#include "trireme/data/order.h"

#include <algorithm>
#include <bit>

#include "trireme/core/error.h"
#include "trireme/core/philox.h"
#include "trireme/data/dataset.h"

namespace trireme::data {

namespace {

constexpr int kRounds = 6;
constexpr uint64_t kPurpose = 0x6F72646572;  // "order": separates it from other uses of the seed

}  // namespace

Order::Order(uint64_t seed, int64_t samples, int64_t global_batch)
    : seed_(seed), samples_(samples), global_batch_(global_batch) {
  core::check(samples > 0, "the data has no samples");
  core::check(global_batch > 0, "the global batch has {} samples; it must have at least 1",
              global_batch);
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(samples - 1)));
  half_bits_ = std::max(1, (bits + 1) / 2);
}

Order::Order(uint64_t seed, const Dataset& dataset, int64_t global_batch)
    : Order(seed, dataset.size(), global_batch) {
  shuffles_ = !dataset.is_shuffled();
}

int64_t Order::batches_per_epoch() const {
  return (samples_ + global_batch_ - 1) / global_batch_;
}

int64_t Order::samples_before(int64_t number) const {
  const int64_t each = batches_per_epoch();
  return number / each * samples_ + std::min(samples_, number % each * global_batch_);
}

int64_t Order::batches_in(int64_t samples) const {
  return samples / samples_ * batches_per_epoch() + samples % samples_ / global_batch_;
}

// A permutation of [0, samples) without a table: a Feistel network permutes the numbers of
// 2 x half_bits_ bits, of which there may be more than samples. A result that is out of range goes
// through the network again until it is inside ("cycle walking"), which keeps it a permutation.
//
//     left | right   ->   right | left ^ philox(right, round)      kRounds times
int64_t Order::sample_at(int64_t epoch, int64_t position) const {
  if (!shuffles_) return position;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto at = static_cast<uint64_t>(position);
  do {
    uint64_t left = at >> half_bits_, right = at & mask;
    for (int round = 0; round < kRounds; ++round) {
      const auto words = core::philox(seed_ ^ kPurpose, static_cast<uint64_t>(epoch),
                                      right | static_cast<uint64_t>(round) << 56);
      const uint64_t next = left ^ ((uint64_t{words[0]} << 32 | words[1]) & mask);
      left = right;
      right = next;
    }
    at = left << half_bits_ | right;
  } while (at >= static_cast<uint64_t>(samples_));
  return static_cast<int64_t>(at);
}

Range Order::positions(int64_t number) const {
  const int64_t begin = number % batches_per_epoch() * global_batch_;
  return {begin, std::min(global_batch_, samples_ - begin)};
}

std::vector<int64_t> Order::block(int64_t number, int rank, int size) const {
  const Range all = positions(number), mine = even_range(all.count, size, rank);
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < mine.count; ++i)
    samples.push_back(sample_at(number / batches_per_epoch(), all.begin + mine.begin + i));
  return samples;
}

std::vector<int64_t> Order::batch(int64_t number) const {
  return block(number, 0, 1);
}

int64_t Order::largest_block(int64_t number, int size) const {
  return even_range(positions(number).count, size, 0).count;
}

int64_t Order::smallest_block(int64_t number, int size) const {
  return even_range(positions(number).count, size, size - 1).count;
}

}  // namespace trireme::data
