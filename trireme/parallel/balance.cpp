#include "trireme/parallel/balance.h"

#include <fmt/ranges.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <set>

#include "trireme/core/error.h"
#include "trireme/nn/bind.h"

namespace trireme::parallel {

namespace {

constexpr int kRuns = 6;  // the first warms up, the fastest of the others counts

/// Gives a link's parameters memory while it lives, and leaves its buffers as they were.
class Lent {
 public:
  Lent(const nn::ModelImpl& model, const nn::Link& link)
      : module_(nn::part_of_model(model, link.layers)) {
    for (const at::Tensor& one : module_->buffers()) buffers_.push_back(one.clone());
    for (const auto& one : nn::parameters_of(*module_))
      if (!nn::is_bound(one.tensor)) lent_.push_back(one.tensor);
    nn::materialize(*module_);
  }
  ~Lent() {
    const at::NoGradGuard guard;
    const auto buffers = module_->buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(buffers_[i]);
    for (const at::Tensor& one : module_->parameters()) one.mutable_grad() = at::Tensor();
    for (const at::Tensor& one : lent_)
      nn::unbind(one, "a parameter has no memory: it had memory only while it was measured");
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::vector<at::Tensor> lent_, buffers_;
};

/// Restores the state of torch's random generator.
class SameChance {
 public:
  SameChance() : generator_(at::detail::getDefaultCPUGenerator()), state_(generator_.get_state()) {}
  ~SameChance() { generator_.set_state(state_); }
  SameChance(const SameChance&) = delete;
  SameChance& operator=(const SameChance&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

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

}  // namespace

StageSizes cut_evenly(const std::vector<double>& costs, int stages,
                      const std::vector<double>& edges) {
  const auto n = costs.size(), parts = static_cast<std::size_t>(stages);
  std::vector<double> until(n + 1, 0);
  std::partial_sum(costs.begin(), costs.end(), until.begin() + 1);
  // Dynamic programming. best[s][i] is the price of the best cut of the first i links into s
  // stages: {cost of the most expensive stage, sum of squares}; from[s][i] is where the last of
  // these begins.
  //
  //   links   0 ......... begin | begin ....... i      best[s][i] = least over begin of
  //           best[s-1][begin]    stage s              {max(best[s-1][begin], cost), ...}
  using Price = std::pair<double, double>;
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  std::vector<std::vector<Price>> best(parts + 1, std::vector<Price>(n + 1, {kInfinite, 0}));
  std::vector<std::vector<std::size_t>> from(parts + 1, std::vector<std::size_t>(n + 1, 0));
  best[0][0] = {0, 0};
  for (std::size_t s = 1; s <= parts; ++s) {
    for (std::size_t i = s; i <= n; ++i) {
      for (std::size_t begin = s - 1; begin < i; ++begin) {
        const auto edge = [&](std::size_t at) {
          return at == 0 || at == n || edges.empty() ? 0 : edges[at];
        };
        const double cost = until[i] - until[begin] + edge(begin) + edge(i);
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
  const auto links = chain.all_between(0, chain.size());
  const auto places = chain.places();
  const auto counted =
      std::count_if(links.begin(), links.end(), [](const auto* link) { return link->counts; });
  const int sum = std::accumulate(layers.begin(), layers.end(), 0);
  if (sum != counted)
    throw ConfigError(fmt::format("the stages are to have {} layers ({}), the model has {}", sum,
                                  fmt::join(layers, ","), counted));
  StageSizes sizes(layers.size(), 0);
  std::size_t stage = 0;
  int left = layers[0];
  for (std::size_t i = 0; i < links.size(); ++i) {
    while (links[i]->counts && left == 0) left = layers[++stage];
    if (links[i]->counts) --left;
    sizes[stage] += places[i];
  }
  return sizes;
}

std::vector<double> parameter_costs(const nn::Chain& chain) {
  std::vector<double> costs;
  for (const nn::Link* link : chain.all_between(0, chain.size())) {
    std::set<const void*> seen;
    double elements = 0;
    for (const auto& layer : link->layers)
      for (const at::Tensor& one : layer->parameters())
        if (seen.insert(one.unsafeGetTensorImpl()).second)
          elements += static_cast<double>(one.numel());
    costs.push_back(elements);
  }
  return costs;
}

namespace {

/// Seconds that a byte takes from one rank of the pipe to the next, while all of them send.
double seconds_per_byte(const comm::Communicator& pipe) {
  constexpr int64_t kBytes = 4 << 20;
  if (pipe.size() == 1) return 0;
  const at::Tensor out = at::zeros({kBytes}, at::kByte), in = at::empty({kBytes}, at::kByte);
  const int next = (pipe.rank() + 1) % pipe.size();
  const int before = (pipe.rank() + pipe.size() - 1) % pipe.size();
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kRuns; ++run) {
    pipe.barrier();
    const auto began = std::chrono::steady_clock::now();
    comm::Work receives = pipe.recv(in, before);
    comm::Work sends = pipe.send(out, next);
    receives.synchronize();
    sends.synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    best = std::min(best, took.count());
  }
  return best / static_cast<double>(kBytes);
}

double bytes_of(const nn::Flow& flow) {
  double bytes = 0;
  for (const at::Tensor& one : flow.tensors)
    bytes += one.defined() ? static_cast<double>(one.nbytes()) : 0;
  return bytes;
}

/// Runs links one after the other, and returns how long forward and backward of each take.
class Stopwatch {
 public:
  Stopwatch(const nn::ModelImpl& model, nn::Flow flow) : model_(model), flow_(std::move(flow)) {}

  double seconds(const nn::Link& link) {
    const Lent lent(model_, link);
    const nn::Flow in = flow_.detached();
    return seconds_of([&] {
      flow_ = link.forward(in);
      at::Tensor sum = at::zeros({}, flow_.x().options().requires_grad(false));
      for (const at::Tensor& one : flow_.tensors)
        if (one.defined() && one.requires_grad()) sum = sum + one.sum();
      return sum;
    });
  }

  double seconds(const nn::Chain& chain, const at::Tensor& targets) {
    const Lent lent(model_, chain.head);
    const nn::Flow in = flow_.detached();
    return seconds_of([&] { return chain.loss(in, targets).sum; });
  }

  nn::Flow& flow() { return flow_; }

 private:
  const nn::ModelImpl& model_;
  nn::Flow flow_;
};

}  // namespace

Measured measure(nn::ModelImpl& model, const nn::Chain& chain, const Mesh& mesh, int64_t rows) {
  const auto example = model.example(rows);
  if (!example)
    throw ConfigError(
        "balancing by time needs a micro-batch to measure, and the model has no example(); write "
        "one, or balance by parameters or a list of layers");
  const SameChance restored;
  const double per_byte = seconds_per_byte(mesh.group(Axis::Pipe));
  Stopwatch watch(model, {example->inputs.x().to(mesh.device()), example->inputs.where});
  Measured all;
  const auto note = [&](const nn::Link& link) {
    all.edges.push_back(2 * per_byte * bytes_of(watch.flow()));
    all.places.push_back(watch.seconds(link));
  };
  for (const nn::Link& link : chain.links) {
    if (link.inside.empty()) {
      note(link);
      continue;
    }
    // A link that is recomputed takes longer as a whole than its parts together.
    const nn::Flow in = watch.flow();
    const double whole = watch.seconds(link);
    watch.flow() = in;
    const std::size_t first = all.places.size();
    for (const nn::Link& one : link.inside) note(one);
    const double parts = std::accumulate(all.places.begin() + static_cast<std::ptrdiff_t>(first),
                                         all.places.end(), 0.0);
    for (std::size_t i = first; i < all.places.size() && parts > 0; ++i)
      all.places[i] *= whole / parts;
  }
  all.edges.push_back(2 * per_byte * bytes_of(watch.flow()));
  all.places.push_back(watch.seconds(chain, example->targets.to(mesh.device())));
  for (auto* list : {&all.places, &all.edges}) {
    at::Tensor mean = at::tensor(*list, at::kDouble);
    mesh.world().all_reduce(mean, comm::ReduceOp::Mean).wait();
    list->assign(mean.data_ptr<double>(), mean.data_ptr<double>() + mean.numel());
  }
  return all;
}

StageSizes balance(nn::ModelImpl& model, const Mesh& mesh, const Balance& how, int stages,
                   int64_t rows) {
  const nn::Chain chain = model.chain();
  if (!chain.loss)
    throw ConfigError(fmt::format(
        "{} cannot be cut into {} stages: it does not say of which links it is made (chain())",
        model.name(), stages));
  const auto links = chain.all_between(0, chain.size());
  const std::size_t most = how.by == Balance::By::Time ? chain.size() : links.size();
  if (static_cast<std::size_t>(stages) > most)
    throw ConfigError(fmt::format(
        "{} stages are more than the model has layers: it is a chain of {} ({}){}", stages,
        links.size(), describe(chain, {static_cast<int>(chain.size())}),
        most > links.size() ? fmt::format(", and cutting inside of its blocks gives {} stages "
                                          "at most",
                                          most)
                            : std::string("; use fewer stages")));
  if (how.by == Balance::By::Time) {
    const Measured measured = measure(model, chain, mesh, rows);
    return cut_evenly(measured.places, stages, measured.edges);
  }
  if (how.by == Balance::By::Parameters) {
    const auto places = chain.places();
    StageSizes sizes;
    std::size_t link = 0;
    for (const int count : cut_evenly(parameter_costs(chain), stages)) {
      sizes.push_back(0);
      for (int i = 0; i < count; ++i) sizes.back() += places[link++];
    }
    return sizes;
  }
  if (how.layers.size() != static_cast<std::size_t>(stages))
    throw ConfigError(fmt::format("the list of layers ({}) is for {} stages, the schedule has {}",
                                  fmt::join(how.layers, ","), how.layers.size(), stages));
  return cut_by_hand(chain, how.layers);
}

std::string describe(const nn::Chain& chain, const StageSizes& sizes) {
  std::vector<std::string> stages;
  std::size_t begin = 0;
  for (const int size : sizes) {
    const auto links = chain.all_between(begin, begin + static_cast<std::size_t>(size));
    begin += static_cast<std::size_t>(size);
    std::vector<std::string> names;
    for (const nn::Link* link : links) names.push_back(link->name);
    stages.push_back(names.size() > 5 ? fmt::format("{}, {} ... {}, {}", names[0], names[1],
                                                    names[names.size() - 2], names.back())
                                      : fmt::format("{}", fmt::join(names, ", ")));
  }
  return fmt::format("{}", fmt::join(stages, " | "));
}

}  // namespace trireme::parallel
