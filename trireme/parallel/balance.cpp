#include "trireme/parallel/balance.h"

#include <fmt/ranges.h>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>

#include "trireme/core/error.h"
#include "trireme/nn/bind.h"

namespace trireme::parallel {

namespace {

constexpr int kRuns = 3;  // the first warms up, the fastest of the others counts

/// Gives a link's parameters memory while it lives.
class Lent {
 public:
  Lent(const nn::ModelImpl& model, const nn::Link& link)
      : module_(nn::part_of_model(model, link.layers)) {
    for (const auto& one : nn::parameters_of(*module_))
      if (!nn::is_bound(one.tensor)) lent_.push_back(one.tensor);
    nn::materialize(*module_);
  }
  ~Lent() {
    for (const at::Tensor& one : module_->parameters()) one.mutable_grad() = at::Tensor();
    for (const at::Tensor& one : lent_)
      nn::unbind(one, "a parameter has no memory: it was lent some only to be measured");
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::vector<at::Tensor> lent_;
};

nn::Flow leaves_of(const nn::Flow& flow) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& one : flow.tensors)
    tensors.push_back(one.detach().requires_grad_(one.is_floating_point()));
  return {std::move(tensors), flow.where};
}

double seconds_of(const std::function<at::Tensor()>& forward) {
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kRuns; ++run) {
    const auto began = std::chrono::steady_clock::now();
    const at::Tensor sum = forward();
    if (sum.requires_grad()) sum.backward();
    if (sum.is_cuda()) (void)sum.item<double>();  // waits for the device
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    if (run > 0) best = std::min(best, took.count());
  }
  return best;
}

std::vector<int> numbers_of(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream in(list);
  for (std::string one; std::getline(in, one, ',');) numbers.push_back(std::stoi(one));
  return numbers;
}

}  // namespace

StageSizes cut_evenly(const std::vector<double>& costs, int stages) {
  const auto n = costs.size(), parts = static_cast<std::size_t>(stages);
  std::vector<double> until(n + 1, 0);
  std::partial_sum(costs.begin(), costs.end(), until.begin() + 1);
  // best[s][i]: {dearest stage, sum of squares} of the first i links as s stages, and where the
  // last of these begins.
  using Price = std::pair<double, double>;
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  std::vector<std::vector<Price>> best(parts + 1, std::vector<Price>(n + 1, {kInfinite, 0}));
  std::vector<std::vector<std::size_t>> from(parts + 1, std::vector<std::size_t>(n + 1, 0));
  best[0][0] = {0, 0};
  for (std::size_t s = 1; s <= parts; ++s) {
    for (std::size_t i = s; i <= n; ++i) {
      for (std::size_t begin = s - 1; begin < i; ++begin) {
        const double cost = until[i] - until[begin];
        const Price price = {std::max(best[s - 1][begin].first, cost),
                             best[s - 1][begin].second + cost * cost};
        if (price < best[s][i]) {
          best[s][i] = price;
          from[s][i] = begin;
        }
      }
    }
  }
  StageSizes sizes(parts);
  for (std::size_t s = parts, end = n; s > 0; end = from[s--][end])
    sizes[s - 1] = static_cast<int>(end - from[s][end]);
  return sizes;
}

StageSizes cut_by_hand(const nn::Chain& chain, const std::vector<int>& layers) {
  int counted = 0;
  for (std::size_t i = 0; i < chain.size(); ++i) counted += chain.at(i).counts ? 1 : 0;
  const int sum = std::accumulate(layers.begin(), layers.end(), 0);
  if (sum != counted)
    throw ConfigError(fmt::format("pipeline.balance = \"{}\" deals {} layers, the model has {}",
                                  fmt::join(layers, ","), sum, counted));
  StageSizes sizes;
  std::size_t link = 0;
  for (std::size_t stage = 0; stage < layers.size(); ++stage) {
    const bool last = stage + 1 == layers.size();
    const std::size_t begin = link;
    if (stage == 0)
      while (link < chain.size() && !chain.at(link).counts) ++link;
    for (int left = layers[stage]; left > 0; ++link) left -= chain.at(link).counts ? 1 : 0;
    if (last) link = chain.size();
    if (link == begin)
      throw ConfigError(fmt::format(
          "pipeline.balance = \"{}\" leaves stage {} without a layer; give each at least one",
          fmt::join(layers, ","), stage));
    sizes.push_back(static_cast<int>(link - begin));
  }
  return sizes;
}

std::vector<double> parameter_costs(const nn::Chain& chain) {
  std::vector<double> costs;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    std::set<const void*> seen;
    double elements = 0;
    for (const auto& layer : chain.at(i).layers)
      for (const at::Tensor& one : layer->parameters())
        if (seen.insert(one.unsafeGetTensorImpl()).second)
          elements += static_cast<double>(one.numel());
    costs.push_back(elements);
  }
  return costs;
}

std::vector<double> time_costs(nn::ModelImpl& model, const nn::Chain& chain, const Mesh& mesh,
                               int64_t rows) {
  const auto example = model.example(rows);
  if (!example)
    throw ConfigError(
        "pipeline.balance = \"time\" needs a micro-batch to measure, and the model has no "
        "example(); write one, or balance by \"params\" or a list");
  nn::Flow flow(example->inputs.x().to(mesh.device()), example->inputs.where);
  const at::Tensor targets = example->targets.to(mesh.device());
  at::Tensor seconds = at::zeros({static_cast<int64_t>(chain.size())}, at::kDouble);
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const Lent lent(model, chain.at(i));
    const nn::Flow in = leaves_of(flow);
    const bool ends = i == chain.links.size();
    seconds[static_cast<int64_t>(i)] = seconds_of([&] {
      if (ends) return chain.loss(in, targets).sum;
      flow = chain.at(i).forward(in);
      at::Tensor sum = at::zeros({}, flow.x().options().requires_grad(false));
      for (const at::Tensor& one : flow.tensors)
        if (one.requires_grad()) sum = sum + one.sum();
      return sum;
    });
  }
  mesh.world().all_reduce(seconds, comm::ReduceOp::Mean).wait();
  return {seconds.data_ptr<double>(), seconds.data_ptr<double>() + seconds.numel()};
}

StageSizes balance(nn::ModelImpl& model, const Mesh& mesh, const std::string& how, int stages,
                   int64_t rows) {
  const nn::Chain chain = model.chain();
  if (!chain.loss)
    throw ConfigError(fmt::format(
        "{} cannot be cut into {} stages: it does not say of which links it is made (chain())",
        model.name(), stages));
  if (static_cast<std::size_t>(stages) > chain.size())
    throw ConfigError(fmt::format(
        "{} stages are more than the model has layers: it is a chain of {} ({})", stages,
        chain.size(), describe(chain, StageSizes{static_cast<int>(chain.size())})));
  if (how == "params") return cut_evenly(parameter_costs(chain), stages);
  if (how == "time") return cut_evenly(time_costs(model, chain, mesh, rows), stages);
  const auto layers = numbers_of(how);
  if (layers.size() != static_cast<std::size_t>(stages))
    throw ConfigError(fmt::format("pipeline.balance = \"{}\" is for {} stages, the schedule has {}",
                                  how, layers.size(), stages));
  return cut_by_hand(chain, layers);
}

std::string describe(const nn::Chain& chain, const StageSizes& sizes) {
  std::vector<std::string> stages;
  std::size_t link = 0;
  for (const int size : sizes) {
    std::vector<std::string> names;
    for (int i = 0; i < size; ++i) names.push_back(chain.at(link++).name);
    stages.push_back(names.size() > 4
                         ? fmt::format("{}, {} ... {}", names[0], names[1], names.back())
                         : fmt::format("{}", fmt::join(names, ", ")));
  }
  return fmt::format("{}", fmt::join(stages, " | "));
}

}  // namespace trireme::parallel
