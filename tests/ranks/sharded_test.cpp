// Models that are sharded: what is where, what is refused, and who is named when ranks differ.
#include <gmock/gmock.h>
#include <malloc.h>
#include <sys/resource.h>

#include <torch/torch.h>

#include <fstream>

#include "support/cuts.h"
#include "support/tiny_model.h"
#include "trireme/core/error.h"
#include "trireme/nn/bind.h"
#include "trireme/nn/recompute.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/parallel/fully_sharded.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using parallel::FullySharded;
using parallel::Sharding;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct NetImpl : nn::LayerImpl {
  explicit NetImpl(int64_t width = 7, int64_t layers = 3) {
    for (int64_t i = 0; i < layers; ++i)
      parts->push_back(std::make_shared<nn::LinearImpl>(width, width));
    register_module("parts", parts);
  }
  /// One part may be left out.
  at::Tensor run(const at::Tensor& x, int64_t without = -1) {
    nn::Flow flow(x);
    for (std::size_t i = 0; i < parts->layers().size(); ++i)
      if (static_cast<int64_t>(i) != without) flow = parts->layers()[i]->forward(std::move(flow));
    return flow.x();
  }
  std::shared_ptr<nn::SequentialImpl> parts = std::make_shared<nn::SequentialImpl>();

 protected:
  nn::Flow compute(const nn::Flow& in) override { return in.with(run(in.x())); }
};

nn::Loss loss_of(const at::Tensor& y) {
  return {(y * y).sum(), at::full({}, static_cast<double>(y.size(0)), at::kDouble)};
}

TEST(Sharded, ARankThatSkipsAUnitIsNamedWithTheUnitAndNobodyHangs) {
  for (const Sharding sharding : {Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters}) {
    for (const int wrong_step : {1, 3}) {
      run_world(kThreads, 3, [&](const Communicator& world) {
        NetImpl net;
        nn::initialize(net, 5);
        const Mesh mesh(world, {.shard = 3});
        FullySharded shards(net, mesh, {.sharding = sharding});
        std::string said;
        try {
          for (int step = 1; step <= 3; ++step) {
            const bool skips = step == wrong_step && world.rank() == 1;
            shards.backward(loss_of(net.run(torch::ones({2, 7}), skips ? 1 : -1)));
            shards.finish();
            shards.updated();
          }
        } catch (const Error& error) {
          said = error.what();
        }
        EXPECT_THAT(said, AllOf(HasSubstr("parts.1"), HasSubstr("rank 1")))
            << "rank " << world.rank();
      });
    }
  }
}

TEST(Sharded, OtherReplicasHearOfAUnitThatWasSkipped) {
  for (const Sharding sharding : {Sharding::Optimizer, Sharding::Parameters}) {
    run_world(kThreads, 4, [&](const Communicator& world) {
      NetImpl net;
      nn::initialize(net, 5);
      FullySharded shards(net, Mesh(world, {.replica = 2, .shard = 2}), {.sharding = sharding});
      std::string said;
      try {
        for (int step = 1; step <= 3; ++step) {
          const bool skips = step == 3 && world.rank() == 1;
          shards.backward(loss_of(net.run(torch::ones({2, 7}), skips ? 1 : -1)));
          shards.finish();
          shards.updated();
        }
      } catch (const Error& error) {
        said = error.what();
      }
      EXPECT_THAT(said, HasSubstr("parts.1")) << "rank " << world.rank();
    });
  }
}

TEST(Sharded, StepsOfWhichNoMicroBatchWasCalledTheLast) {
  for (const Sharding sharding : {Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters}) {
    run_world(kThreads, 4, [&](const Communicator& world) {
      const Mesh mesh(world, {.replica = 2, .shard = 2});
      const auto gradient = [&](const auto& attach) {
        NetImpl net;
        nn::initialize(net, 5);
        const auto attached = attach(net);
        for (int micro = 0; micro < 2; ++micro)
          attached->backward(loss_of(net.run(torch::full({2, 7}, world.rank() + micro + 1.0))),
                             parallel::Micro::More);
        attached->finish();
        return attached->gradient(0).clone();
      };
      const auto wanted = gradient(
          [&](NetImpl& net) { return std::make_unique<parallel::DataParallel>(net, mesh); });
      const auto got = gradient([&](NetImpl& net) {
        return std::make_unique<FullySharded>(net, mesh,
                                              parallel::FullyShardedOptions{.sharding = sharding});
      });
      EXPECT_TRUE(torch::allclose(got, wanted, 1e-5));
    });
  }
}

TEST(Sharded, AModelIsShardedOnce) {
  NetImpl net;
  nn::initialize(net, 5);
  const Mesh mesh = mesh_of_one();
  { const FullySharded shards(net, mesh); }
  EXPECT_THAT([&] { FullySharded(net, mesh); },
              ::testing::ThrowsMessage<MisuseError>(HasSubstr("'parts.0' is or was sharded")))
      << "its weights would begin anew";
}

TEST(Sharded, ABackwardThatThrewIsNotGoneOnFrom) {
  NetImpl net;
  nn::initialize(net, 5);
  FullySharded shards(net, mesh_of_one());
  auto y = net.run(torch::ones({2, 7}));
  y.register_hook([](const at::Tensor&) { throw std::runtime_error("no"); });
  EXPECT_ANY_THROW(shards.backward(loss_of(y)));
  EXPECT_THAT([&] { shards.finish(); },
              ::testing::ThrowsMessage<c10::Error>(HasSubstr("a backward of this step threw")));
}

class SomeUnits : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Sharded, SomeUnits, ::testing::Bool());

TEST_P(SomeUnits, OnlyTheOneAtWorkAndTheNextAreGathered) {
  const bool recomputed = GetParam();
  run_world(kThreads, 2, [&](const Communicator& world) {
    nn::Sequential net;
    int64_t largest = 0;
    for (int64_t width = 10; width < 90; width += 10) {  // no two are of one size
      net->push_back(std::make_shared<nn::LinearImpl>(width, width + 10));
      largest = (width + 1) * (width + 10) * 4;
    }
    nn::initialize(*net, 5);
    if (recomputed) nn::recompute(*net);  // all of them as one
    FullySharded shards(*net, Mesh(world, {.shard = 2}));
    int64_t most = 0;
    for (const auto& layer : net->layers())
      layer->around(nn::Seam::Profile, [&](Flow in, const nn::LayerImpl::Call& inner) {
        Flow out = inner(std::move(in));
        most = std::max(most, shards.weights().gathered_bytes());
        return out;
      });
    for (int step = 0; step < 3; ++step) {
      shards.backward(loss_of(net->forward(torch::ones({2, 10}))));
      shards.finish();
      shards.updated();
      net->eval();
      const torch::NoGradGuard guard;
      net->forward(torch::ones({1, 10}));
      net->train();
    }
    EXPECT_GT(most, 0);
    EXPECT_LE(std::max(most, shards.weights().gathered_bytes()), 2 * largest + 512);
  });
}

TEST(Sharded, WholeWeightsAreThereAgainAfterSettling) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    NetImpl net;
    nn::initialize(net, 5);
    FullySharded shards(net, Mesh(world, {.shard = 2}), {.sharding = Sharding::Optimizer});
    {
      const torch::NoGradGuard guard;
      for (const auto& one : shards.shards()) one.master.fill_(7);
    }
    shards.updated();
    EXPECT_FALSE(nn::is_bound(net.parameters()[0])) << "it may be half there";
    shards.complete_update();
    EXPECT_EQ(net.parameters()[0].sum().item<float>(), 7 * 49);
    shards.check_same();
    if (world.rank() == 1) net.parameters()[0].detach().fill_(8);
    EXPECT_THROW(shards.check_same(), CommError) << "it has drifted";
  });
}

TEST(Sharded, ARankThatRunsNothingIsNamedToo) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    NetImpl net;
    nn::initialize(net, 5);
    FullySharded shards(net, Mesh(world, {.shard = 2}));
    std::string said;
    try {
      if (world.rank() == 0) shards.backward(loss_of(net.run(torch::ones({2, 7}))));
      shards.finish();
    } catch (const Error& error) {
      said = error.what();
    }
    EXPECT_THAT(said, HasSubstr("parts.0")) << "rank " << world.rank();
  });
}

TEST(Sharded, AParameterIsThereOnlyInsideItsLayer) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    NetImpl net;
    nn::initialize(net, 5);
    const at::Tensor weight = net.parameters()[0];
    const at::Tensor before = weight.detach().clone();
    FullySharded shards(net, Mesh(world, {.shard = 2}));
    EXPECT_FALSE(nn::is_bound(weight));
    EXPECT_EQ(weight.sizes(), before.sizes());
    EXPECT_TRUE(shards.value(0).equal(before));
    if (!nn::unbound_reads_throw()) return;
    std::string said;
    try {
      (void)weight.sum().item<double>();
    } catch (const std::exception& error) {
      said = error.what();
    }
    EXPECT_THAT(said, HasSubstr("'parts.0.weight' is sharded"));
  });
}

TEST(Sharded, FrozenAndUnusedParametersAreLeftAlone) {
  for (const Sharding sharding : {Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters}) {
    run_world(kThreads, 3, [&](const Communicator& world) {
      const Mesh mesh(world, {.shard = 3});
      const auto grads = [&](bool is_whole, const auto& attach) {
        NetImpl net(5, 4);
        nn::initialize(net, 9);
        net.to(torch::kDouble);
        net.parts->layers()[1]->parameters()[0].set_requires_grad(false);
        const auto attached = attach(net);
        const auto x = torch::full({2, 5}, world.rank() + 1.0, torch::kDouble);
        attached->backward(loss_of(net.run(x, 3)));
        attached->finish();
        std::map<std::string, at::Tensor> all;
        for (std::size_t i = 0; i < attached->gradients().parameters().size(); ++i) {
          const at::Tensor gradient = attached->gradient(i);
          all[attached->gradients().parameters()[i].name] =
              gradient.defined() ? gradient.clone() : at::Tensor();
        }
        // 25 elements in steps of 16: nothing is left for the third rank.
        EXPECT_EQ(attached->frozen().size(), is_whole || world.rank() < 2 ? 1u : 0u);
        return all;
      };
      const auto wanted = grads(
          true, [&](NetImpl& net) { return std::make_unique<parallel::DataParallel>(net, mesh); });
      const auto got = grads(false, [&](NetImpl& net) {
        return std::make_unique<FullySharded>(net, mesh,
                                              parallel::FullyShardedOptions{.sharding = sharding});
      });
      EXPECT_EQ(wanted.size(), 7u);
      for (const auto& [name, gradient] : wanted) {
        ASSERT_EQ(got.at(name).defined(), gradient.defined()) << name;
        if (!gradient.defined()) continue;
        EXPECT_TRUE(torch::allclose(got.at(name), gradient, 1e-12, 1e-14)) << name;
      }
      EXPECT_FALSE(wanted.at("parts.3.weight").defined());
    });
  }
}

TEST(Sharded, RefusesAParameterWithoutALayerToGatherItBy) {
  struct BareImpl : nn::LayerImpl {
    BareImpl() {
      own = parameter("own", {3}, nn::InitRule::zeros());
      inner = register_module("inner", nn::Linear(3, 3));
    }
    at::Tensor own;
    nn::Linear inner{nullptr};
  } bare;
  nn::initialize(bare, 1);
  const Mesh mesh = mesh_of_one();
  try {
    const FullySharded shards(bare, mesh);
    FAIL() << "it was taken";
  } catch (const MisuseError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'own'"), HasSubstr("layer of its own")));
  }
}

/// From now on this process gets no more than that much more memory: of any kind, or private.
void allow_only(int resource, std::size_t more_bytes) {
  const char* const key = resource == RLIMIT_AS ? "VmSize" : "VmData";
  std::ifstream status("/proc/self/status");
  std::size_t kib = 0;
  for (std::string line; std::getline(status, line);)
    if (line.rfind(key, 0) == 0) kib = std::stoul(line.substr(7));
  const rlimit limit{(kib << 10) + more_bytes, RLIM_INFINITY};
  ASSERT_EQ(::setrlimit(resource, &limit), 0);
}

TEST(Sharded, AModelThatFitsNoRankIsBuiltAndTrained) {
  constexpr int64_t kSide = 1024, kLayers = 160;  // 640 MiB of weights
  for (const BackendUnderTest& backend : all_backends()) {
    if (backend.threads) continue;
    run_world(backend, 4, [&](const Communicator& world) {
      at::set_num_threads(1);
      // Large blocks return to the system when they are freed: what is limited below is memory in
      // use, not the holes in malloc's heap, which differ from run to run.
      ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
      {  // whatever libtorch and the world make once
        NetImpl warm(64, 2);
        nn::initialize(warm, 1);
        FullySharded shards(warm, Mesh(world, {.shard = 4}));
        shards.backward(loss_of(warm.run(torch::ones({2, 64}))));
        shards.finish();
      }
      world.barrier();
      // Shared memory counts as everybody's address space; over tcp all memory is private. Weights
      // and gradients of a rank are 320 MiB; layers that are gathered, messages, and what libtorch
      // takes for matrix products, which differs from CPU to CPU, come on top.
      allow_only(backend.name == "shm" ? RLIMIT_DATA : RLIMIT_AS, std::size_t{512} << 20);
      EXPECT_ANY_THROW(NetImpl(kSide, kLayers)) << "it would have fit";
      const nn::Deferred deferred;
      NetImpl net(kSide, kLayers);
      nn::initialize(net, 1);
      FullySharded shards(net, Mesh(world, {.shard = 4}));
      shards.backward(loss_of(net.run(torch::ones({2, kSide}))));
      EXPECT_EQ(shards.finish().weight, 8);
      const auto elems = [](const auto& kept) {
        int64_t count = 0;
        for (const auto& one : kept) count += one.master.numel();
        return count;
      };
      EXPECT_LE(elems(shards.shards()), kLayers * (kSide * kSide + kSide) / 4 + kLayers * 32);
    });
  }
}

TEST(Sharded, TheExpertsOfARankAreNotOverwritten) {
  struct Expert : nn::LayerImpl {
    Expert() { weight = parameter("weight", {4, 3}, nn::InitRule::ones()); }
    std::map<std::string, Layout> layouts(nn::Style, nn::Sequence) const override {
      return {{"weight", Layout({4, 3}, {{Axis::Expert, 0}})}};
    }
    at::Tensor weight;
  };
  run_world(kThreads, 2, [&](const Communicator& world) {
    const Mesh mesh(world, {.replica = 2, .expert = 2});
    auto expert = std::make_shared<Expert>();
    torch::nn::Module root;
    root.register_module("expert", expert);
    nn::cut(root, {{"expert", nn::Style::Whole}}, mesh);
    {
      const torch::NoGradGuard guard;
      expert->weight.fill_(world.rank());
    }
    const parallel::DataParallel replicas(root, mesh);
    EXPECT_EQ(expert->weight[0][0].item<float>(), static_cast<float>(world.rank()));
  });
}

}  // namespace
}  // namespace trireme::test
