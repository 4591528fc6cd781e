#include "trireme/train/claims.h"

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <exception>

namespace trireme::train {

namespace {

constexpr int64_t kWant = 1, kLeave = 2, kNoMore = -1;

int64_t receive(const comm::Communicator& peer, int from) {
  const at::Tensor word = at::empty({1}, at::kLong);
  peer.recv(word, from).wait();
  return word.item<int64_t>();
}

void send(const comm::Communicator& peer, int to, int64_t value) {
  peer.send(at::full({1}, value, at::kLong), to).wait();
}

}  // namespace

Claims::Claims(const comm::Communicator& ranks, int64_t first, int64_t end)
    : end_(end), counter_(first), serves_(ranks.rank() == 0) {
  for (int other = 1; other < ranks.size(); ++other) {
    const bool takes_part = serves_ || ranks.rank() == other;
    const auto pair = ranks.split(fmt::format("claims{}", other), takes_part ? 0 : 1, ranks.rank());
    if (!takes_part) continue;
    // A slow rank may think about one batch for a long time; a dead one ends the world.
    pair.set_timeout(std::chrono::hours(24 * 365));
    pairs_.push_back(pair);
  }
  if (!serves_) return;
  for (const comm::Communicator& pair : pairs_)
    servers_.emplace_back([this, pair] {
      try {
        serve(pair);
      } catch (const std::exception&) {  // the world has ended: the rank's own ops say why
      }
    });
}

Claims::~Claims() {
  try {
    // The exception itself says why this rank fails; the others hear who. Threads that wait end.
    if (std::uncaught_exceptions() > exceptions_)
      for (const comm::Communicator& pair : pairs_) pair.carrier()->abandon();
    else if (!serves_ && !pairs_.empty())
      send(pairs_.front(), 0, kLeave);
  } catch (const std::exception&) {  // the world has ended
  }
}

std::optional<int64_t> Claims::count() {
  const int64_t number = counter_.fetch_add(1);
  return number < end_ ? std::optional(number) : std::nullopt;
}

void Claims::serve(const comm::Communicator& peer) {
  while (receive(peer, 1) == kWant) send(peer, 1, count().value_or(kNoMore));
}

std::optional<int64_t> Claims::next() {
  if (serves_) return count();
  send(pairs_.front(), 0, kWant);
  const int64_t number = receive(pairs_.front(), 0);
  return number == kNoMore ? std::nullopt : std::optional(number);
}

}  // namespace trireme::train
