// How long it takes to make and to verify a large schedule: interleaved, 64 ranks, 512
// micro-batches, 4 stages per rank (262144 pieces of work), and the same with its transfers.
//
//     build/bin/schedules [ROUNDS]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <vector>

#include "trireme/pipeline/generators.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/price.h"

using namespace trireme::pipeline;

namespace {

double median_ms(int rounds, const std::function<void()>& body) {
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const auto began = std::chrono::steady_clock::now();
    body();
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began)
            .count());
  }
  std::ranges::nth_element(times, times.begin() + rounds / 2);
  return times[static_cast<size_t>(rounds / 2)];
}

size_t num_actions(const Schedule& schedule) {
  size_t count = 0;
  for (const Program& program : schedule.programs) count += program.size();
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = std::max(argc > 1 ? std::atoi(argv[1]) : 5, 1);
  const Shape shape{.ranks = 64, .micros = 512, .stages_per_rank = 4};
  const Schedule schedule = make("interleaved", shape);
  const Schedule complete = with_transfers(schedule);
  const double bubble = price(schedule, {{}}).bubble();
  const double expected =
      (shape.ranks - 1.0) / (shape.stages_per_rank * shape.micros + shape.ranks - 1);
  if (std::abs(bubble - expected) > 1e-9 || num_actions(schedule) != 2 * 64 * 512 * 4) return 1;
  const double make_ms = median_ms(rounds, [&] { make("interleaved", shape); });
  const double verify_ms = median_ms(rounds, [&] { verify(schedule); });
  const double complete_ms = median_ms(rounds, [&] { verify(with_transfers(schedule)); });
  const double price_ms = median_ms(rounds, [&] { price(schedule, {{}}); });
  fmt::print(
      "{{\"bench\":\"schedule\",\"name\":\"interleaved\",\"ranks\":{},\"micros\":{},"
      "\"stages_per_rank\":{},\"actions\":{},\"actions_with_transfers\":{},\"make_ms\":{:.2f},"
      "\"verify_ms\":{:.2f},\"transfers_and_verify_ms\":{:.2f},\"price_ms\":{:.2f}}}\n",
      shape.ranks, shape.micros, shape.stages_per_rank, num_actions(schedule),
      num_actions(complete), make_ms, verify_ms, complete_ms, price_ms);
  return 0;
}
