#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>

#include "cli/config_text.h"
#include "cli/rank_commands.h"
#include "cli/status_line.h"
#include "models/registry.h"
#include "trireme/config/mesh.h"
#include "trireme/core/json.h"
#include "trireme/cuda/graph.h"
#include "trireme/train/datasets.h"
#include "trireme/train/memory.h"
#include "trireme/train/trainer.h"
#include "trireme/train/world.h"

namespace trireme::cli {

namespace {

using Clock = std::chrono::steady_clock;

int time_steps(const config::Config& config, const comm::Communicator& world) {
  const train::TensorMemory tensors;
  const Mesh mesh(world, config::degrees_of(config, world.size()),
                  train::pick_device(config, world));
  const auto data = train::part_of(train::make_dataset(config), config, mesh);
  const data::Order order(static_cast<uint64_t>(config.run.seed), *data, config.batch.global);
  const auto model = [&](const Mesh& on) { return models::make_model(config, on); };
  train::Trainer trainer(config, mesh, train::build(model, mesh), config.run.steps);
  const comm::Communicator samples = mesh.samples();
  std::optional<StatusLine> progress;
  if (world.rank() == 0) progress.emplace();
  std::vector<data::Batch> batches;
  for (int64_t i = 0; i < config.run.steps; ++i)
    batches.push_back(data::Loader::read(*data, order, samples.rank(), samples.size(), i));
  std::vector<double> times;
  double weight = 0, loss = 0;
  // On a GPU the host is a step ahead, as in training: a step's time is that between two results.
  const bool ahead = trainer.lag() > 0;
  auto begin = Clock::now();
  for (int64_t step = 1; step <= config.run.steps; ++step) {
    if (!ahead) {
      world.barrier();
      begin = Clock::now();
    }
    trainer.start(step, batches[static_cast<std::size_t>(step - 1)]);
    if (trainer.num_started() <= trainer.lag() && step < config.run.steps) continue;
    const auto result = trainer.take();
    const auto end = Clock::now();
    times.push_back(std::chrono::duration<double, std::milli>(end - begin).count());
    begin = end;
    weight = result.weight;
    loss = result.loss;
    if (progress && progress->due())
      progress->show(
          fmt::format("step {} of {}, {:.0f} ms each", step, config.run.steps, times.back()));
  }
  while (trainer.num_started() > 0) loss = trainer.take().loss;
  progress.reset();
  // The first quarter warms up.
  times.erase(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 4));
  const double sum = std::accumulate(times.begin(), times.end(), 0.0);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  at::Tensor memory =
      at::tensor({static_cast<double>(train::pss_mib()), static_cast<double>(tensors.peak()),
                  static_cast<double>(tensors.now())},
                 at::kDouble);
  world.all_reduce(memory, comm::ReduceOp::Max).wait();
  if (world.rank() != 0) return 0;
  const auto rounded = [](double value, double to) { return std::round(value * to) / to; };
  core::Json line = {{"bench", "train"},
                     {"ranks", world.size()},
                     {"tokens_per_s", rounded(weight / *middle * 1e3, 10)},
                     {"step_ms", rounded(*middle, 100)},
                     {"sustained_tokens_per_s",
                      rounded(weight * static_cast<double>(times.size()) / sum * 1e3, 10)},
                     {"pss_mib", static_cast<int64_t>(memory[0].item<double>())},
                     {"tensor_mib", rounded(memory[1].item<double>() / (1 << 20), 100)},
                     {"state_mib", rounded(memory[2].item<double>() / (1 << 20), 100)},
                     {"last_loss", rounded(loss, 1e5)}};
  if (mesh.device().is_cuda()) {
    const auto peak = cuda::peak_memory(mesh.device());
    line["gpu_mib"] = peak.reserved_bytes >> 20;
    line["graph"] = trainer.graph_obstacle().empty();
  }
  fmt::print("{}\n", line.dump());
  return 0;
}

}  // namespace

int bench_train(const std::vector<std::string>& args) {
  const auto config = load_config(args.at(0), {args.begin() + 1, args.end()});
  refuse_early(config, train::num_ranks(config));
  return train::with_ranks(
      config, [&](const comm::Communicator& world) { return time_steps(config, world); });
}

}  // namespace trireme::cli
