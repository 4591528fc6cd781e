// How often ranks talk in a step: for each bucket, and not for each of its parameters.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <sstream>

#include "support/backends.h"
#include "trireme/core/trace.h"
#include "trireme/nn/linear.h"
#include "trireme/parallel/fully_sharded.h"

namespace trireme::test {
namespace {

using comm::Communicator;

/// How many operations in the text of a trace have both words in their names.
int count_ops(const std::string& trace, const std::string& kind, const std::string& dtype) {
  std::istringstream lines(trace);
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    const bool begins = line.find("\"ph\":\"b\"") != line.npos;
    count += begins && line.find(kind) != line.npos && line.find(dtype) != line.npos;
  }
  return count;
}

TEST(BucketSums, OverReplicasAreOneForEachBucketThoughGradientsAreKeptWhole) {
  constexpr int kLayers = 3;  // each a bucket of a weight and a bias, whose shards lie apart
  run_world(kThreads, 4, [&](const Communicator& world) {
    nn::Sequential net;
    for (int i = 0; i < kLayers; ++i) net->push_back(std::make_shared<nn::LinearImpl>(7, 7));
    nn::initialize(*net, 5);
    parallel::FullySharded shards(*net, Mesh(world, {.replica = 2, .shard = 2}),
                                  {.sharding = parallel::Sharding::Optimizer});
    const auto trace = std::make_shared<core::Trace>(world.rank());
    for (int step = 0; step < 2; ++step) {
      if (step == 1) world.set_trace(trace);
      const auto y = net->forward(torch::ones({2, 7}));
      shards.backward({y.pow(2).sum(), at::tensor(2.0, at::kDouble)});
      shards.finish();
      shards.updated();
    }
    world.set_trace(nullptr);
    EXPECT_EQ(count_ops(trace->take(), "all_reduce", "float32"), kLayers);
  });
}

}  // namespace
}  // namespace trireme::test
