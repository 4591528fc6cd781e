#include "trireme/verify/identities.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>

#include "trireme/data/loader.h"
#include "trireme/train/datasets.h"
#include "trireme/train/trainer.h"

namespace trireme::verify {

namespace {

using config::Compression;
using config::SyncKind;

bool is_local(const config::Config& config) {
  return train::is_local(config);
}

bool is_asynchronous(const config::Config& config) {
  return config.mesh.pipe > 1 && config.pipeline.schedule.starts_with("pipedream");
}

bool compresses(const config::Config& config) {
  return config.compress.kind != Compression::None ||
         config.compress.transfers != config::Narrow::None ||
         config.compress.gathers != config::Narrow::None;
}

/// An update that is linear in the gradient: then averaging weights is averaging gradients.
config::Config plain_sgd(config::Config config) {
  config = comparable(std::move(config));
  config.optim.kind = config::OptimizerKind::Sgd;
  config.optim.momentum = 0;
  config.optim.clip = 0;
  config.optim.schedule = config::RateSchedule::Constant;
  config.optim.warmup = 0;
  config.precision = {.compute = Dtype::Float64, .reduce = Dtype::Float64};
  return config;
}

config::Config with_sync(config::Config config, const config::Sync& sync) {
  config.sync = sync;
  return config;
}

void add_local(std::vector<Identity>& all, const config::Config& config,
               const config::Config& base) {
  if (!is_local(config)) return;
  config::Sync average{.kind = SyncKind::Average, .inner_group = config.sync.inner_group};
  all.push_back({"averaging after every step = lockstep", with_sync(base, average), base});
  if (config.sync.kind == SyncKind::Average || config.sync.kind == SyncKind::PostLocal) return;
  // A few steps must contain meetings.
  average.every = std::min<int64_t>(config.sync.every, 2);
  config::Sync plain = average;
  plain.kind = config.sync.kind;
  plain.momentum = 0;
  plain.nesterov = false;
  all.push_back(
      {fmt::format("{} without momentum, of outer rate 1 = averaging", to_string(config.sync.kind)),
       with_sync(base, plain), with_sync(base, average)});
}

void add_compressed(std::vector<Identity>& all, const config::Config& config,
                    const config::Config& base) {
  config::Config exact = base;
  exact.compress = config.compress;
  exact.compress.warmup = 0;
  exact.compress.transfers = exact.compress.gathers = config::Narrow::None;
  switch (config.compress.kind) {
    case Compression::TopK:
    case Compression::RandomK:
      exact.compress.ratio = 1;
      all.push_back({fmt::format("{} of ratio 1 = no compression", to_string(config.compress.kind)),
                     exact, base});
      return;
    case Compression::PowerSgd:  // also matrices whose factors are larger than they
      exact.compress.rank = std::numeric_limits<int32_t>::max();
      exact.compress.min_saving = 0;
      all.push_back({"powersgd of full rank = no compression", exact, base, 1e-9});
      return;
    default:  // the others round, whatever their options are
      return;
  }
}

/// The weights after some steps: of replicas that differ, the common ones.
std::map<std::string, at::Tensor> weights_after(const TrainingSetup& setup,
                                                const config::Config& config, const Mesh& mesh,
                                                int64_t steps) {
  train::Trainer trainer(config, mesh, train::build(setup.model, mesh), steps);
  const data::Order order(static_cast<uint64_t>(config.run.seed), *setup.data, config.batch.global);
  const comm::Communicator& ranks = mesh.samples();
  const auto data = train::part_of(setup.data, config, mesh);
  for (int64_t step = 1; step <= steps; ++step)
    trainer.step(step, data::Loader::read(*data, order, ranks.rank(), ranks.size(), step - 1));
  std::map<std::string, at::Tensor> weights;
  for (const checkpoint::Item& item : trainer.state().items)
    if (item.piece.name.find('/') == std::string::npos)
      weights[fmt::format("{} {} {}", item.piece.name, fmt::join(item.piece.offset, ","),
                          item.piece.begin)] = item.tensor.detach().clone();
  return weights;
}

}  // namespace

std::string why_not_equal(const config::Config& config) {
  std::string why;
  const auto add = [&](const std::string& reason) { why += (why.empty() ? "" : "; ") + reason; };
  if (is_local(config))
    add(fmt::format("sync.kind = \"{}\" lets replicas go their own ways between meetings",
                    to_string(config.sync.kind)));
  if (config.sync.on_servers())
    add(fmt::format(
        "sync.kind = \"{}\" lets servers make the updates{}, and no servers are "
        "started here",
        to_string(config.sync.kind),
        config.sync.kind == SyncKind::Stale && config.sync.staleness == 0 ? ""
                                                                          : " as gradients come"));
  if (compresses(config)) add("compression sends less than the whole");
  if (is_asynchronous(config))
    add(fmt::format("pipeline.schedule = \"{}\" computes gradients with older weights",
                    config.pipeline.schedule));
  return why;
}

config::Config comparable(config::Config config) {
  config.sync = {};
  config.compress = {};
  if (is_asynchronous(config)) {
    config.pipeline.schedule = "1f1b";
    config.pipeline.vertical_sync = config.pipeline.lr_by_delay = false;
  }
  return config;
}

std::vector<Identity> identities_of(const config::Config& config) {
  const config::Config base = plain_sgd(config);
  std::vector<Identity> all;
  if (config.sync.on_servers()) return all;
  add_local(all, config, base);
  add_compressed(all, config, base);
  return all;
}

std::vector<Identity> prove_identities(const TrainingSetup& setup, const comm::Communicator& world,
                                       const Degrees& degrees, int64_t steps) {
  std::vector<Identity> all = identities_of(setup.config);
  const Mesh mesh(world, degrees);
  for (Identity& one : all) {
    const int64_t enough = std::max<int64_t>(steps, 2 * one.one.sync.every);
    const auto a = weights_after(setup, one.one, mesh, enough),
               b = weights_after(setup, one.other, mesh, enough);
    at::Tensor worst = at::zeros({2}, at::kDouble);  // difference, size
    for (const auto& [name, tensor] : b) {
      if (tensor.numel() == 0) continue;
      const auto found = a.find(name);
      const double difference = found == a.end()
                                    ? std::numeric_limits<double>::infinity()
                                    : (found->second - tensor).abs().max().item<double>();
      worst[0] = std::max(worst[0].item<double>(), difference);
      worst[1] = std::max(worst[1].item<double>(), tensor.abs().max().item<double>());
    }
    world.all_reduce(worst, comm::ReduceOp::Max).wait();
    one.difference = worst[0].item<double>() / worst[1].item<double>();
  }
  return all;
}

std::string text_of(const std::vector<Identity>& proved) {
  std::string text;
  for (const Identity& one : proved)
    text += fmt::format("  {:<60} {:.1e}  {}\n", one.sentence, one.difference,
                        one.holds() ? "same" : fmt::format("! more than {:.0e}", one.tolerance));
  return text;
}

}  // namespace trireme::verify
