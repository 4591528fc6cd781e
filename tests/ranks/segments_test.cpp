// memory.recompute = "sqrt" and "except_last": the same bits as without, and the memory that they
// are for.
#include "trireme/nn/segments.h"

#include <gmock/gmock.h>

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "support/cuts.h"
#include "support/scratch.h"
#include "trireme/nn/recompute.h"
#include "trireme/parallel/pipeline.h"
#include "trireme/pipeline/generators.h"
#include "trireme/pipeline/text.h"
#include "trireme/train/footprint.h"
#include "trireme/train/memory.h"
#include "trireme/train/recomputation.h"

namespace trireme::test {
namespace {

using comm::Communicator;
using config::Recompute;
using ::testing::ElementsAre;

void expect_bits_of_plain(const Case& c) {
  SCOPED_TRACE(describe(c));
  run_world(kThreads, degrees_of(c).world(), [&](const Communicator& world) {
    at::set_num_threads(1);
    const Mesh mesh(world, degrees_of(c));
    Case plain = c;
    plain.recompute = Recompute::None;
    const Outcome wanted = train(plain, mesh), got = train(c, mesh);
    EXPECT_EQ(got.losses, wanted.losses);
    EXPECT_EQ(got.norms, wanted.norms);
    for (const auto& [name, weight] : wanted.weights)
      EXPECT_TRUE(got.weights.at(name).equal(weight)) << name;
  });
}

TEST(SqrtRecompute, GivesTheSameBitsOnEveryMesh) {
  using config::ShardedState;
  constexpr auto kSqrt = Recompute::Sqrt;
  const Case cases[] = {
      {.recompute = kSqrt, .layers = 5},
      {.recompute = kSqrt, .kind = "mlp", .layers = 4},
      {.replica = 2, .tensor = 2, .recompute = kSqrt, .layers = 5, .dtype = config::Dtype::Float32},
      {.shard = 2, .what = ShardedState::Optimizer, .recompute = kSqrt, .layers = 5},
      {.shard = 2, .what = ShardedState::Gradients, .recompute = kSqrt, .layers = 5},
      {.shard = 2, .tensor = 2, .recompute = kSqrt, .layers = 5},
      {.recompute = kSqrt, .pipe = 2, .layers = 8, .schedule = "zb-h1"},
      {.recompute = kSqrt, .pipe = 2, .stages_per_rank = 2, .layers = 8, .schedule = "interleaved"},
      {.shard = 2, .recompute = kSqrt, .pipe = 2, .layers = 8, .keep_gathered = false},
  };
  for (const Case& c : cases) expect_bits_of_plain(c);
}

TEST(ExceptLast, GivesTheSameBitsWithEverySchedule) {
  for (const char* schedule : {"looped-bfs", "1f1b", "zb-h1"})
    expect_bits_of_plain({.recompute = Recompute::ExceptLast,
                          .pipe = 2,
                          .stages_per_rank = schedule == std::string("looped-bfs") ? 2 : 1,
                          .layers = 4,
                          .schedule = schedule,
                          .dtype = config::Dtype::Float32});
  // Blocks that are cut inside; weights that are gathered again for each micro-batch.
  expect_bits_of_plain({.recompute = Recompute::ExceptLast, .pipe = 4, .schedule = "1f1b"});
  expect_bits_of_plain({.shard = 2,
                        .recompute = Recompute::ExceptLast,
                        .pipe = 2,
                        .layers = 4,
                        .keep_gathered = false});
  expect_bits_of_plain({.recompute = Recompute::ExceptLast,
                        .pipe = 2,
                        .stages_per_rank = 2,
                        .layers = 8,
                        .schedule = "dualpipe-v"});
  expect_bits_of_plain({.recompute = Recompute::ExceptLast});
}

TEST(Segments, AreCutAtEveryRootAndLeaveOutWhatIsNoLayer) {
  std::vector<nn::Link> links(11);
  links.front().counts = false;
  std::vector<const nn::Link*> all;
  for (const nn::Link& one : links) all.push_back(&one);
  const auto sizes = [&](nn::LastSegment last) {
    std::vector<std::pair<std::size_t, bool>> found;
    for (const nn::Segment& one : nn::sqrt_segments(all, last))
      found.emplace_back(one.links->size(), one.recompute);
    return found;
  };
  using Size = std::pair<std::size_t, bool>;
  EXPECT_THAT(sizes(nn::LastSegment::Kept),
              ElementsAre(Size{1, false}, Size{4, true}, Size{3, true}, Size{3, false}));
  EXPECT_THAT(sizes(nn::LastSegment::Recomputed),
              ElementsAre(Size{1, false}, Size{4, true}, Size{3, true}, Size{3, true}));
  all.clear();
  EXPECT_TRUE(nn::sqrt_segments(all, nn::LastSegment::Kept).empty());
}

struct KeptBytes {
  int64_t kept = 0, peak = 0;
};

constexpr int64_t kRows = 8;

config::Config deep(int64_t layers, Recompute recompute) {
  config::Config config;
  config.run.device = config::Device::Cpu;
  config.model = {.layers = layers,
                  .hidden = 64,
                  .heads = 4,
                  .kv_heads = 4,
                  .ffn = 256,
                  .seq = 64,
                  .vocab = 32};
  config.batch = {.global = kRows, .micro = kRows};
  config.memory.recompute = recompute;
  return config;
}

/// The bytes that a forward keeps for backward, and the peak of both.
KeptBytes kept_bytes_of(const config::Config& config) {
  at::set_num_threads(1);
  const auto model = models::make_model(config, mesh_of_one());
  nn::initialize(*model, 3);
  train::recompute(config, mesh_of_one(), *model);
  const auto tokens =
      torch::randint(0, config.model.vocab, {kRows, config.model.seq}, torch::kLong);
  const train::TensorMemory memory;
  const nn::Loss loss = model->loss(tokens, tokens);
  const int64_t kept = memory.now();
  loss.sum.backward();
  return {kept, memory.peak()};
}

TEST(SqrtRecompute, KeepsTheInputOfEveryThirdOfNineLayers) {
  constexpr int64_t kStream = kRows * 64 * 64 * 4;  // [rows, seq, hidden]
  const KeptBytes none = kept_bytes_of(deep(9, Recompute::None)),
                  root = kept_bytes_of(deep(9, Recompute::Sqrt)),
                  block = kept_bytes_of(deep(9, Recompute::Block));
  const int64_t layer = kept_bytes_of(deep(10, Recompute::None)).kept - none.kept;
  // Of six layers nothing, of the two segments that they are in the inputs, of which the first is
  // the embedding's output: it was not kept by what follows it, but its norm kept it as its own.
  EXPECT_EQ(root.kept, none.kept - 6 * layer + 2 * kStream);
  EXPECT_EQ(block.kept, none.kept - 9 * layer + 9 * kStream);
  EXPECT_LT(root.peak, none.peak - 5 * layer);
  EXPECT_GT(root.peak, block.peak) << "three layers are made again at a time, not one";
}

TEST(Footprint, OfActivationsIsThePeakOnTheCpuWhateverIsRecomputed) {
  for (const Recompute recompute : {Recompute::None, Recompute::Block, Recompute::Sqrt}) {
    const config::Config config = deep(9, recompute);
    const auto whole = models::make_whole(config, Degrees{});
    const auto foretold =
        train::footprint(config, *whole, Degrees{}, c10::DeviceType::CPU).activations;
    // Backward makes the gradients of the weights, too, which the footprint counts elsewhere.
    int64_t gradients = 0;
    for (const auto& one : nn::parameters_of(*whole)) gradients += 4 * one.tensor.numel();
    const int64_t peak = kept_bytes_of(config).peak;
    EXPECT_GE(foretold + gradients, peak) << to_string(recompute);
    EXPECT_LE(foretold, 1.1 * static_cast<double>(peak)) << to_string(recompute);
  }
}

/// The most bytes that a rank of a pipeline has for the micro-batches of a step.
int64_t pipeline_peak(const std::string& schedule, Recompute recompute, int rank) {
  std::array<int64_t, 2> peaks{};
  run_world(kThreads, 2, [&](const Communicator& world) {
    at::set_num_threads(1);
    config::Config config = deep(8, recompute);
    config.pipeline.schedule = schedule;
    config.pipeline.balance = {config::Balance::By::Parameters};
    config.batch = {.global = 4 * kRows, .micro = kRows};
    const Mesh mesh(world, {.pipe = 2});
    const auto make = [&](const Mesh& on) { return models::make_model(config, on); };
    train::Trainer trainer(config, mesh, train::build(make, mesh), 4);
    const auto tokens =
        torch::randint(0, config.model.vocab, {4 * kRows, config.model.seq}, torch::kLong);
    const std::vector<int64_t> ids(4 * kRows, 1);
    const data::Batch batch{.sample_ids = ids,
                            .inputs = tokens,
                            .targets = tokens,
                            .largest_block = 4 * kRows,
                            .all_rows = 4 * kRows};
    trainer.step(1, batch);
    const train::TensorMemory memory;
    trainer.step(2, batch);
    peaks.at(static_cast<std::size_t>(world.rank())) = memory.peak();
  });
  return peaks.at(static_cast<std::size_t>(rank));
}

/// GPipe with the backwards in the opposite order, as torchgpipe has them: only the backward of the
/// last micro-batch follows its forward at once, on every rank.
std::string opposite_gpipe(const Scratch& folder) {
  pipeline::Schedule schedule = pipeline::make("gpipe", {.ranks = 2, .micros = 4});
  for (pipeline::Program& program : schedule.programs)
    std::reverse(program.begin() + 4, program.end());
  const std::string file = folder / "gpipe.csv";
  std::ofstream(file) << pipeline::to_csv(schedule);
  return file;
}

TEST(ExceptLast, TakesMoreThanBlocksForOneMicroBatchAndLessThanNone) {
  const Scratch folder;
  const std::string schedule = opposite_gpipe(folder);
  for (const int rank : {0, 1}) {
    const int64_t none = pipeline_peak(schedule, Recompute::None, rank),
                  last = pipeline_peak(schedule, Recompute::ExceptLast, rank),
                  block = pipeline_peak(schedule, Recompute::Block, rank);
    EXPECT_LT(last, 0.55 * static_cast<double>(none)) << "one of four micro-batches keeps all";
    EXPECT_GT(last, block);
  }
  // In 1f1b every backward follows at once on the last rank, and none on the first. What travels at
  // the moment of a peak differs from run to run.
  EXPECT_NEAR(static_cast<double>(pipeline_peak("1f1b", Recompute::ExceptLast, 1)) /
                  static_cast<double>(pipeline_peak("1f1b", Recompute::None, 1)),
              1, 0.15);
  EXPECT_NEAR(static_cast<double>(pipeline_peak("1f1b", Recompute::ExceptLast, 0)) /
                  static_cast<double>(pipeline_peak("1f1b", Recompute::Block, 0)),
              1, 0.15);
  EXPECT_LT(pipeline_peak("1f1b", Recompute::ExceptLast, 0),
            0.6 * static_cast<double>(pipeline_peak("1f1b", Recompute::None, 0)));
}

TEST(Footprint, OfExceptLastLiesBetweenNoneAndBlock) {
  const Scratch folder;
  const std::string schedule = opposite_gpipe(folder);
  const auto foretold = [&](Recompute recompute) {
    config::Config config = deep(8, recompute);
    config.pipeline.schedule = schedule;
    config.batch = {.global = 4 * kRows, .micro = kRows};
    const Degrees degrees{.pipe = 2};
    const auto whole = models::make_whole(config, degrees);
    return train::footprint(config, *whole, degrees, c10::DeviceType::CPU).activations;
  };
  const int64_t none = foretold(Recompute::None), last = foretold(Recompute::ExceptLast),
                block = foretold(Recompute::Block);
  EXPECT_LT(last, none);
  EXPECT_GT(last, block);
  const int64_t layer = (none - block) / (4 * 4);  // 4 layers, 4 micro-batches
  EXPECT_NEAR(static_cast<double>(last - block) / static_cast<double>(4 * layer), 1, 0.3);
}

TEST(ExceptLast, IsRefusedWhereNoBackwardFollows) {
  config::Config config = deep(8, Recompute::ExceptLast);
  config.pipeline.schedule = "gpipe";
  config.batch = {.global = 4 * kRows, .micro = kRows};
  const auto whole = models::make_whole(config, {.pipe = 2});
  EXPECT_THAT([&] { train::footprint(config, *whole, {.pipe = 2}, c10::DeviceType::CPU); },
              ::testing::ThrowsMessage<ConfigError>(
                  ::testing::HasSubstr("no micro-batch goes backward right after its forward")));
}

TEST(SqrtRecompute, NeedsAChain) {
  struct Lonely : nn::ModelImpl {};
  Lonely model;
  EXPECT_THAT([&] { train::recompute(deep(2, Recompute::Sqrt), mesh_of_one(), model); },
              ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("write chain()")));
}

}  // namespace
}  // namespace trireme::test
