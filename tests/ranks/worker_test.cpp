// Modules whose weights live on servers: the numbers of one process that has them itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <thread>

#include "trireme/compress/factory.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/ps/one_process_job.h"
#include "trireme/ps/table.h"
#include "trireme/ps/training_step.h"
#include "trireme/worker/compressing_filter.h"
#include "trireme/worker/fused_rules.h"
#include "trireme/worker/parameter_table.h"
#include "trireme/worker/server_parallel.h"

namespace trireme::test {
namespace {

using torch::Tensor;

constexpr double kRounding = 1e-12;  // sums in another order, in float64

struct NetImpl : torch::nn::Module {
  explicit NetImpl(at::ScalarType dtype = at::kDouble)
      : hidden(register_module("hidden", torch::nn::Linear(5, 70))),
        out(register_module("out", torch::nn::Linear(70, 3))) {
    torch::manual_seed(11);
    for (const Tensor& one : parameters())
      torch::nn::init::uniform_(const_cast<Tensor&>(one), -0.5, 0.5);
    to(dtype);
  }
  Tensor forward(const Tensor& x) { return out(torch::tanh(hidden(x))); }
  torch::nn::Linear hidden, out;
};
TORCH_MODULE(Net);

/// Rows of a batch: another number for each, one of them empty.
std::pair<Tensor, Tensor> batch_of(uint64_t batch, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(1000 + batch);
  const auto rows = static_cast<int64_t>(batch % 5);
  const Tensor x = torch::rand({rows, 5}, generator).to(dtype);
  return {x, torch::stack({x.sum(1), x.prod(1), x.select(1, 0)}, 1)};
}

nn::Loss loss_of(Net& net, const Tensor& x, const Tensor& y) {
  return {(net(x) - y).pow(2).sum(), x.size(0)};
}

std::vector<Tensor> values_of(Net& net) {
  std::vector<Tensor> values;
  for (const Tensor& one : net->parameters()) values.push_back(one.detach().clone());
  return values;
}

double difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, (a[i] - b[i]).abs().max().item<double>());
  return most;
}

struct Case {
  at::ScalarType dtype = at::kDouble;
  ps::RulePtr rule = {};
  ps::Consistency consistency = ps::Consistency::Lockstep;
  int64_t tau = 0;
  double clip = 0;
  uint32_t workers = 1, servers = 2;
  uint64_t batches = 24;
  std::shared_ptr<const ps::Filter> filter = {};
};

double rate_of(const Case& of) {
  return of.clip > 0 ? 0.02 : 0.05;
}

/// The weights after all updates, as every worker reads them; and the losses of worker 0.
struct Trained {
  std::vector<std::vector<Tensor>> weights;
  std::vector<double> losses;
};

Trained train_on_servers(const Case& of) {
  Net first(of.dtype);
  ps::JobConfig job{.seed = 3, .servers = of.servers, .workers = of.workers};
  job.lanes = 2;
  job.data = {.batches_per_epoch = of.batches, .steps_per_task = 3};
  ps::TableConfig table = ps::module_table(*first, of.rule);
  table.consistency = of.consistency;
  table.tau = of.tau;
  table.clip_norm = of.clip;
  table.filter = of.filter;
  job.tables = {table};
  const ps::OneProcessJob servers(job);
  Trained trained;
  trained.weights.resize(of.workers);
  {
    std::vector<std::jthread> workers;
    for (uint32_t w = 0; w < of.workers; ++w)
      workers.emplace_back([&, w] {
        Net net(of.dtype);
        ps::Client client(servers.options(), job, w);
        ps::TrainingStep step(client, w);
        ps::ServerParallel replica(*net, client);
        const auto& end = ps::train(step, [&](ps::TrainingStep& now) {
          replica.begin(now);
          const auto [x, y] = batch_of(now.batch(), of.dtype);
          replica.backward(loss_of(net, x, y));
          const auto totals = replica.finish();
          if (w == 0) trained.losses.push_back(totals.loss);
        });
        replica.read(end);
        trained.weights[w] = values_of(net);
      });
  }
  return trained;
}

/// One process, with our optimizer in the place of servers: the batches of all workers of a clock
/// are one batch.
Trained reference(const Case& of, bool adam) {
  Trained trained;
  Net net(of.dtype);
  std::vector<optim::Slot> slots;
  for (const auto& item : net->named_parameters())
    slots.push_back({item.key(), item.value(), optim::is_decayed(item.value().sizes())});
  const auto optimizer = adam ? optim::make_adamw(std::move(slots), {})
                              : optim::make_sgd(std::move(slots), {.momentum = 0.9});
  {
    parallel::DataParallel replica(*net, mesh_of_one());
    for (uint64_t first = 0; first < of.batches; first += of.workers) {
      std::vector<Tensor> xs, ys;
      for (uint64_t batch = first; batch < first + of.workers; ++batch) {
        const auto [x, y] = batch_of(batch, of.dtype);
        xs.push_back(x);
        ys.push_back(y);
      }
      replica.backward(loss_of(net, torch::cat(xs), torch::cat(ys)));
      const auto totals = replica.finish({.divide = parallel::Divide::Later, .norm = true});
      trained.losses.push_back(totals.loss);
      if (totals.weight == 0) continue;
      const double norm = totals.norm / totals.weight;
      optimizer->step(rate_of(of), totals.weight * core::clip_divisor(norm, of.clip));
    }
  }
  trained.weights.push_back(values_of(net));
  return trained;
}

/// The fused rules take their rate from pushes; here it is part of the rule.
struct Rated final : ps::Rule {
  Rated(ps::RulePtr of, double by) : inner(std::move(of)), rate(by) {}
  std::string describe() const override { return fmt::format("{} at {}", inner->describe(), rate); }
  ps::StateLayout state() const override { return inner->state(); }
  void apply(ps::Row<float> row, std::span<float> gradient, const ps::Step& step) const override {
    inner->apply(row, gradient, rated(step));
  }
  void apply(ps::Row<double> row, std::span<double> gradient, const ps::Step& step) const override {
    inner->apply(row, gradient, rated(step));
  }
  ps::Step rated(ps::Step step) const {
    step.rate *= rate;
    return step;
  }
  ps::RulePtr inner;
  double rate;
};

ps::RulePtr with_rate(const Case& of, const ps::RulePtr& rule) {
  return std::make_shared<Rated>(rule, rate_of(of));
}

ps::RulePtr fused(const Case& of, bool adam) {
  return with_rate(of, adam ? ps::make_fused_adamw({}) : ps::make_fused_sgd({.momentum = 0.9}));
}

TEST(ServerParallel, OneWorkerOnFreeIsOneProcessToTheBit) {
  for (const bool adam : {true, false})
    for (const auto dtype : {at::kFloat, at::kDouble})
      for (const double clip : {0.0, 0.3}) {
        Case of{.dtype = dtype, .consistency = ps::Consistency::Free, .clip = clip};
        of.rule = fused(of, adam);
        const Trained served = train_on_servers(of), alone = reference(of, adam);
        EXPECT_EQ(served.losses, alone.losses) << adam << dtype << clip;
        EXPECT_EQ(difference(served.weights[0], alone.weights[0]), 0) << adam << dtype << clip;
      }
}

TEST(ServerParallel, LockstepIsOneProcessOnTheWholeBatch) {
  for (const bool adam : {true, false})
    for (const uint32_t workers : {1U, 2U, 3U})
      for (const double clip : {0.0, 0.3}) {
        Case of{.clip = clip, .workers = workers};
        of.rule = fused(of, adam);
        const Trained served = train_on_servers(of), alone = reference(of, adam);
        for (const auto& weights : served.weights)
          EXPECT_LE(difference(weights, alone.weights[0]), kRounding) << adam << workers << clip;
        for (const auto& weights : served.weights)
          EXPECT_EQ(difference(weights, served.weights[0]), 0) << "all read the same";
      }
}

TEST(ServerParallel, StaleWithTauZeroIsLockstepToTheBit) {
  Case lockstep{.clip = 0.3, .workers = 3}, stale = lockstep;
  stale.consistency = ps::Consistency::Stale;
  lockstep.rule = stale.rule = fused(lockstep, true);
  EXPECT_EQ(difference(train_on_servers(lockstep).weights[0], train_on_servers(stale).weights[0]),
            0);
}

/// Adds 1 for every update, in whatever order they come.
struct Count final : ps::TypedRule<Count> {
  std::string describe() const override { return "count"; }
  ps::StateLayout state() const override { return {}; }
  template <class T>
  void update(ps::Row<T> row, std::span<const T>, const ps::Step&) const {
    for (T& value : row.values) value += 1;
  }
};

TEST(ServerParallel, StaleAndFreeWorkersMakeEveryUpdateOnce) {
  for (const auto& [consistency, tau] :
       {std::pair(ps::Consistency::Stale, 2), std::pair(ps::Consistency::Free, 0)}) {
    const Case of{.rule = std::make_shared<Count>(),
                  .consistency = consistency,
                  .tau = tau,
                  .workers = 3,
                  .batches = 30};
    Net first;
    auto wanted = values_of(first);
    for (Tensor& one : wanted)
      for (int i = 0; i < 24; ++i) one += 1;  // of 30 batches 6 have no rows
    for (const auto& weights : train_on_servers(of).weights)
      EXPECT_EQ(difference(weights, wanted), 0);
  }
}

TEST(ServerParallel, RefusesAModelThatIsNotThatOfTheTable) {
  Net first;
  ps::JobConfig job{.data = {.batches_per_epoch = 4}};
  job.tables = {ps::module_table(*first, ps::make_sgd({}))};
  const ps::OneProcessJob servers(job);
  ps::Client client(servers.options(), job, 0);
  torch::nn::Linear other(4, 4);
  try {
    ps::ServerParallel replica(*other, client);
    ADD_FAILURE() << "attached";
  } catch (const MisuseError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("trains 2 pieces of parameters, but its table has "
                                                 "4; give all processes the same model"));
  }
}

/// What a filter does to a gradient, with feedback over the steps, and the server's update of it.
TEST(Filters, AreTheCompressorsOfGradients) {
  for (const auto kind : {compress::Kind::Fp16, compress::Kind::Int8, compress::Kind::TopK}) {
    const std::shared_ptr<const compress::Compressor> compressor =
        compress::make_compressor({.kind = kind, .ratio = 0.1});
    const auto filter = ps::make_filter(compressor, 7);
    std::vector<float> values(200), residual(200), decoded(200);
    Tensor kept = torch::zeros({200});
    for (uint64_t step = 0; step < 3; ++step) {
      const Tensor gradient =
          torch::rand({200}, at::detail::createCPUGenerator(step)).to(torch::kFloat) - 0.5;
      std::memcpy(values.data(), gradient.data_ptr<float>(), 200 * sizeof(float));
      const std::string bytes = filter->encode(values, residual, {.stream = 5, .step = step});
      EXPECT_EQ(bytes.size(), filter->num_bytes(200));
      filter->decode(bytes, decoded);
      const Tensor theirs = torch::empty({200});
      compressor->decode(
          compressor->encode_with_feedback(
              gradient, kept, {.seed = 7, .stream = 5, .step = static_cast<int64_t>(step)}),
          theirs);
      EXPECT_EQ(std::memcmp(decoded.data(), theirs.data_ptr<float>(), 200 * sizeof(float)), 0);
      EXPECT_EQ(std::memcmp(residual.data(), kept.data_ptr<float>(), 200 * sizeof(float)), 0);
    }
    EXPECT_THROW(filter->decode("short", decoded), CommError);
  }
}

TEST(Filters, APushInFewerBytesStillTrains) {
  Case plain{.dtype = at::kFloat, .workers = 2, .batches = 120};
  plain.rule = fused(plain, true);
  Case filtered = plain;
  filtered.filter = ps::make_filter(compress::make_compressor({.kind = compress::Kind::Int8}), 1);
  const Trained a = train_on_servers(plain), b = train_on_servers(filtered);
  const double moved = difference(a.weights[0], [] {
    Net first(at::kFloat);
    return values_of(first);
  }());
  const double apart = difference(a.weights[0], b.weights[0]);
  EXPECT_GT(apart, 0) << "it was not used";
  EXPECT_LT(apart, moved / 4);
}

/// An embedding on servers, of which only touched rows travel, against torch's, which has all.
TEST(SparseTable, TrainsAnEmbeddingAsTorchDoes) {
  constexpr int64_t kWords = 50, kDim = 6;
  constexpr uint64_t kBatches = 30;
  for (const bool adagrad : {false, true}) {
    ps::JobConfig job{.seed = 5, .servers = 2};
    job.data = {.batches_per_epoch = kBatches, .steps_per_task = 4};
    job.tables = {{.name = "words",
                   .kind = ps::TableKind::Sparse,
                   .type = ps::ValueType::Float64,
                   .elems = kDim,
                   .rule = adagrad ? ps::make_adagrad({.lr = 0.1}) : ps::make_sgd({.lr = 0.1}),
                   .init_scale = 0.5}};
    const ps::OneProcessJob servers(job);
    ps::Client client(servers.options(), job, 0);
    const ps::Table table(client, "words");
    ps::TrainingStep step(client, 0);
    std::vector<int64_t> all(kWords);
    for (int64_t i = 0; i < kWords; ++i) all[static_cast<std::size_t>(i)] = i;
    const auto span_of = [](const Tensor& tensor) {
      return std::span<double>(tensor.data_ptr<double>(), static_cast<std::size_t>(tensor.numel()));
    };

    Tensor weight;  // torch's embedding begins with what the table has
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    const auto loss_of = [](const Tensor& rows) {
      return (rows.prod(1) - rows.sum(1)).pow(2).sum();
    };
    const auto& end = ps::train(step, [&](ps::TrainingStep& now) {
      if (!weight.defined()) {
        weight = torch::empty({kWords, kDim}, torch::kDouble);
        table.pull(now, ps::Keys(std::span<const int64_t>(all)), span_of(weight)).wait();
        weight.requires_grad_();
        if (adagrad)
          optimizer = std::make_unique<torch::optim::Adagrad>(std::vector<Tensor>{weight},
                                                              torch::optim::AdagradOptions(0.1));
        else
          optimizer = std::make_unique<torch::optim::SGD>(std::vector<Tensor>{weight},
                                                          torch::optim::SGDOptions(0.1));
      }
      auto generator = at::detail::createCPUGenerator(now.batch());
      const Tensor words =  // some come twice
          torch::randint(kWords, {9}, generator, torch::kLong);
      const ps::Keys keys(std::span<const int64_t>(words.data_ptr<int64_t>(), 9));
      const Tensor rows = torch::empty({9, kDim}, torch::kDouble);
      table.pull(now, keys, span_of(rows)).wait();
      EXPECT_LE((rows - weight.detach().index_select(0, words)).abs().max().item<double>(),
                kRounding);
      rows.requires_grad_();
      loss_of(rows).backward();
      now.weight = 9;
      table.push(now, keys, span_of(rows.grad()));

      optimizer->zero_grad();
      (loss_of(torch::embedding(weight, words)) / 9).backward();
      optimizer->step();
    });
    const Tensor got = torch::empty({kWords, kDim}, torch::kDouble);
    table.pull(end, ps::Keys(std::span<const int64_t>(all)), span_of(got)).wait();
    EXPECT_LE((got - weight.detach()).abs().max().item<double>(), kRounding) << adagrad;
  }
}

}  // namespace
}  // namespace trireme::test
