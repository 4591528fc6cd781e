// A small gpt that is trained in any precision on any mesh.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "support/tiny_model.h"
#include "trireme/data/loader.h"
#include "trireme/train/trainer.h"

namespace trireme::test::precision {

/// A mesh, and what the configuration says besides it.
struct MeshCase {
  Degrees degrees;
  std::function<void(config::Config&)> change = [](config::Config&) {};
};

inline config::Config gpt_config(config::Dtype compute, const MeshCase& setup) {
  config::Config config = tiny_gpt_config();
  config.batch.global = 8;
  config.batch.micro = 2;
  config.precision.compute = compute;
  setup.change(config);
  return config;
}

/// A trainer on the samples of `Texts`.
struct Training {
  Training(const config::Config& with, const comm::Communicator& world, const Degrees& degrees,
           int64_t steps = 20)
      : config(with),
        mesh(world, degrees),
        trainer(config, mesh,
                train::build([&](const Mesh& on) { return models::make_model(config, on); }, mesh),
                steps),
        order(3, data.size(), config.batch.global) {
    at::set_num_threads(1);
  }
  train::StepResult step(int64_t number) {
    const comm::Communicator ranks = mesh.samples();
    return trainer.step(number,
                        data::Loader::read(data, order, ranks.rank(), ranks.size(), number - 1));
  }
  /// Masters, weights and the optimizer's state, copied.
  std::vector<at::Tensor> state() {
    std::vector<at::Tensor> all;
    for (const checkpoint::Item& item : trainer.state().items) all.push_back(item.tensor.clone());
    for (const auto& shard : trainer.shards()) all.push_back(shard.weight.detach().clone());
    return all;
  }

  config::Config config;
  Mesh mesh;
  Texts data;
  train::Trainer trainer;
  data::Order order;
};

/// Have two lists of tensors the same bits?
inline bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& one, const auto& other) { return one.equal(other); });
}

}  // namespace trireme::test::precision
