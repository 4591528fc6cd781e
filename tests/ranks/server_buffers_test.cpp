// Buffers on servers: running statistics and counts are those of one process, or of DataParallel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <thread>

#include "support/backends.h"
#include "support/scratch.h"
#include "trireme/format/load.h"
#include "trireme/nn/bind.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/ps/one_process_job.h"
#include "trireme/ps/snapshot_files.h"
#include "trireme/ps/training_step.h"
#include "trireme/worker/buffer_table.h"
#include "trireme/worker/fused_rules.h"
#include "trireme/worker/parameter_table.h"
#include "trireme/worker/server_parallel.h"

namespace trireme::test::buffers_on_servers {
namespace {

using torch::Tensor;
using Named = std::map<std::string, Tensor>;

constexpr double kRounding = 1e-12;  // sums in another order, in float64
constexpr int64_t kChannels = 21;    // their padded pieces lie in several ranges

/// Batch norm, and a mask that nobody changes.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(at::ScalarType dtype)
      : in(register_module("in", torch::nn::Linear(5, kChannels))),
        norm(register_module("norm", torch::nn::BatchNorm1d(kChannels))),
        out(register_module("out", torch::nn::Linear(kChannels, 3))),
        mask(register_buffer("mask", torch::arange(kChannels) % 3 > 0)) {
    torch::manual_seed(11);
    for (const Tensor& one : parameters())
      torch::nn::init::uniform_(const_cast<Tensor&>(one), -0.5, 0.5);
    nn::move_to(*this, dtype, at::kCPU);
  }
  Tensor forward(const Tensor& x) { return out(torch::tanh(norm(in(x))) * mask); }
  torch::nn::Linear in;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear out;
  Tensor mask;
};
TORCH_MODULE(Net);

/// Every batch has other rows, and another number of them.
nn::Loss loss_of(Net& net, uint64_t batch, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(1000 + batch);
  const auto rows = static_cast<int64_t>(2 + batch % 5);
  const Tensor x = (torch::rand({rows, 5}, generator) * 3).to(dtype);
  const Tensor y = torch::stack({x.sum(1), x.prod(1), x.select(1, 0)}, 1);
  return {(net(x) - y).pow(2).sum(), rows};
}

Named state_of(const Net& net) {
  Named all;
  for (const auto& item : net->named_parameters()) all[item.key()] = item.value().detach().clone();
  for (const auto& item : net->named_buffers()) all[item.key()] = item.value().clone();
  return all;
}

void expect_near(const Named& a, const Named& b, double most) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    const Tensor& other = b.at(name);
    EXPECT_EQ(tensor.scalar_type(), other.scalar_type()) << name;
    const bool is_number = tensor.is_floating_point() && most > 0;
    if (is_number)
      EXPECT_LE((tensor - other).abs().max().item<double>(), most) << name;
    else
      EXPECT_TRUE(tensor.equal(other)) << name << "\n" << tensor << "\n" << other;
  }
}

/// SGD at this rate, whatever a push says.
ps::RulePtr sgd(double of_test) {
  struct AtRate final : ps::Rule {
    std::string describe() const override { return inner->describe(); }
    ps::StateLayout state() const override { return inner->state(); }
    void apply(ps::Row<float> row, std::span<float> gradient, const ps::Step& step) const override {
      inner->apply(row, gradient, rated(step));
    }
    void apply(ps::Row<double> row, std::span<double> gradient,
               const ps::Step& step) const override {
      inner->apply(row, gradient, rated(step));
    }
    explicit AtRate(double given) : rate(given) {}
    ps::Step rated(ps::Step step) const {
      step.rate *= rate;
      return step;
    }
    double rate;
    ps::RulePtr inner = ps::make_fused_sgd({.momentum = 0.9});
  };
  return std::make_shared<AtRate>(of_test);
}

struct Case {
  at::ScalarType dtype = at::kDouble;
  ps::Consistency consistency = ps::Consistency::Lockstep;
  int64_t tau = 0;
  uint32_t workers = 1;
  uint64_t batches = 24;
  double rate = 0.05;
};

ps::JobConfig job_of(const Case& of) {
  ps::JobConfig job{.seed = 3, .servers = 2, .workers = of.workers, .ranges = 6};
  job.lanes = 2;
  job.data = {.batches_per_epoch = of.batches, .steps_per_task = 3};
  Net first(of.dtype);
  job.tables = {ps::buffer_table(*first), ps::module_table(*first, sgd(of.rate))};
  for (ps::TableConfig& table : job.tables) {
    table.consistency = of.consistency;
    table.tau = of.tau;
  }
  return job;
}

/// What each worker reads when all work is done.
std::vector<Named> train_on(const ps::OneProcessJob& servers, const ps::JobConfig& job,
                            at::ScalarType dtype) {
  std::vector<Named> ends(job.workers);
  std::vector<std::jthread> workers;
  for (uint32_t w = 0; w < job.workers; ++w)
    workers.emplace_back([&, w] {
      Net net(dtype);
      ps::Client client(servers.options(), job, w);
      ps::TrainingStep step(client, w);
      ps::ServerParallel replica(*net, client);
      const auto& end = ps::train(step, [&](ps::TrainingStep& now) {
        replica.begin(now);
        replica.backward(loss_of(net, now.batch(), dtype));
        replica.finish();
      });
      replica.read(end);
      ends[w] = state_of(net);
    });
  workers.clear();
  return ends;
}

std::vector<Named> train_on_servers(const Case& of) {
  const ps::JobConfig job = job_of(of);
  const ps::OneProcessJob servers(job);
  return train_on(servers, job, of.dtype);
}

/// DataParallel with a rank for each worker.
Named train_replicas(const Case& of) {
  Named end;
  run_world(kThreads, static_cast<int>(of.workers), [&](const comm::Communicator& world) {
    Net net(of.dtype);
    std::vector<optim::Slot> slots;
    for (const auto& item : net->named_parameters())
      slots.push_back({item.key(), item.value(), optim::is_decayed(item.value().sizes())});
    const auto optimizer = optim::make_sgd(std::move(slots), {.momentum = 0.9});
    parallel::DataParallel replica(*net, world);
    for (uint64_t first = 0; first < of.batches; first += of.workers) {
      replica.backward(loss_of(net, first + static_cast<uint64_t>(world.rank()), of.dtype));
      const auto totals = replica.finish({.divide = parallel::Divide::Later});
      optimizer->step(of.rate, totals.weight);
    }
    if (world.rank() == 0) end = state_of(net);
  });
  return end;
}

TEST(BuffersOnServers, OfOneFreeWorkerAreThoseOfOneProcessToTheBit) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const Case of{.dtype = dtype, .consistency = ps::Consistency::Free};
    const Named alone = train_replicas(of);
    EXPECT_EQ(alone.at("norm.num_batches_tracked").item<int64_t>(), 24);
    expect_near(train_on_servers(of)[0], alone, 0);
  }
}

TEST(BuffersOnServers, InLockstepAreThoseOfDataParallel) {
  for (const uint32_t workers : {2U, 3U}) {
    const Case of{.workers = workers};
    const Named replicas = train_replicas(of);
    for (const Named& end : train_on_servers(of)) expect_near(end, replicas, kRounding);
  }
}

/// Every worker begins a step with the buffers of some push, and all read the same in the end. The
/// weights stay as they are, so that all batches are alike.
TEST(BuffersOnServers, OfStaleAndFreeWorkersAreThoseOfTheLastPushes) {
  const Named one = train_replicas({.batches = 60, .rate = 0});
  for (const auto consistency : {ps::Consistency::Stale, ps::Consistency::Free}) {
    const auto ends = train_on_servers(
        {.consistency = consistency, .tau = 2, .workers = 3, .batches = 60, .rate = 0});
    for (const Named& end : ends) expect_near(end, ends[0], 0);
    const auto count = ends[0].at("norm.num_batches_tracked").item<int64_t>();
    EXPECT_GE(count, 60 / 3 / (2 * (2 + 1)));
    EXPECT_LE(count, 60);
    const Tensor &mean = ends[0].at("norm.running_mean"), &var = ends[0].at("norm.running_var");
    EXPECT_GT(var.min().item<double>(), 0);
    // Averages over tens of batches of the same kind, and not what they were in the beginning.
    EXPECT_LT((mean - one.at("norm.running_mean")).abs().max().item<double>(), 0.5);
    EXPECT_GT(mean.abs().max().item<double>(), 0.5);
    EXPECT_TRUE(ends[0].at("mask").equal(one.at("mask")));
  }
}

TEST(BuffersOnServers, LieInCheckpointsAsWhatTheyAre) {
  const Scratch folder;
  const std::string step = folder / "steps/step-00000006";
  const Case of{.workers = 2, .batches = 12};
  ps::JobConfig job = job_of(of);
  const auto files = std::make_shared<ps::SnapshotFiles>(
      job, ps::SnapshotFiles::Options{.folder = folder / "steps"});
  {
    ps::OneProcessJob servers(job, files);
    servers.want_last_snapshot();
    const Named end = train_on(servers, job, of.dtype)[0];
    format::Checkpoint saved(step);
    for (const auto& [name, dtype] : {std::pair("norm.running_var", "F64"),
                                      {"norm.num_batches_tracked", "I64"},
                                      {"mask", "BOOL"}}) {
      const Tensor& wanted = end.at(name);
      const Tensor found = torch::empty_like(wanted);
      saved.read(format::whole_piece(std::string("buffer/") + name, wanted.sizes().vec()), dtype,
                 found.data_ptr());
      EXPECT_TRUE(found.equal(wanted)) << name;
    }
  }
  // A job that continues from it begins with them.
  job.start_from = step;
  job.data.begin = job.data.batches_per_epoch;
  job.data.batches_per_epoch += 12;
  const ps::OneProcessJob servers(job, files);
  const Named end = train_on(servers, job, of.dtype)[0];
  expect_near(end, train_replicas({.workers = 2, .batches = 24}), kRounding);
}

TEST(BuffersOnServers, AreRefusedWhereTheModelIsAnother) {
  const ps::JobConfig job = job_of({});
  const ps::OneProcessJob servers(job);
  ps::Client client(servers.options(), job, 0);
  Net other(at::kDouble);
  other->norm->num_batches_tracked.set_data(torch::zeros({2}, torch::kLong));
  try {
    ps::ServerParallel replica(*other, client);
    ADD_FAILURE() << "attached";
  } catch (const MisuseError& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("table 'buffers' has 'buffer/norm.num_batches_tracked' as I64"));
  }
}

}  // namespace
}  // namespace trireme::test::buffers_on_servers
