// Running statistics in pipelines, in checkpoints, and in replicas that train on their own.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <map>
#include <mutex>

#include "support/images.h"
#include "support/scratch.h"
#include "trireme/checkpoint/resume.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/data/loader.h"
#include "trireme/format/load.h"
#include "trireme/nn/batch_norm.h"
#include "trireme/nn/parameters.h"
#include "trireme/parallel/pipeline.h"
#include "trireme/pipeline/generators.h"
#include "trireme/train/trainer.h"

namespace trireme::test {
namespace {

using comm::Communicator;

constexpr double kSameStatistics = 1e-12;

double distance(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0
                        : (a.to(torch::kDouble) - b.to(torch::kDouble)).abs().max().item<double>();
}

/// Ours, then torch's in a layer, on two stages.
struct TwoNormsImpl : nn::ModelImpl {
  explicit TwoNormsImpl(const Mesh& mesh) {
    torch::nn::BatchNorm2d norm(3);
    first = register_module("first", nn::BatchNorm(3, nn::BatchNormImpl::Options{.relu = true}));
    second = register_module("second", nn::as_layer(norm));
    nn::convert_sync_batch_norm(*this, mesh);
  }
  nn::Chain chain() override {
    return {.links = {{.name = "first", .layers = {first.ptr()}},
                      {.name = "second", .layers = {second}}},
            .head = {.name = "head", .layers = {}},
            .loss = [](const Flow& in, const at::Tensor&) {
              return nn::Loss(in.x().pow(3).sum(), in.x().size(0));
            }};
  }
  using Flow = nn::Flow;
  nn::BatchNorm first{nullptr};
  std::shared_ptr<nn::LayerImpl> second;
};

TEST(BatchNormInPipelines, NormalizesMicroBatchesAndTracksMiniBatches) {
  constexpr int kMicros = 3;
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
    run_world(kThreads, 4, [&](const Communicator& world) {
      at::set_num_threads(1);
      const Mesh mesh(world, {.pipe = 2, .replica = 2});
      const auto model = std::make_shared<TwoNormsImpl>(mesh);
      nn::initialize(*model, 1);
      model->to(torch::kDouble);
      std::map<std::string, std::map<int64_t, at::Tensor>> outputs;
      for (const auto& [name, layer] :
           {std::pair<std::string, std::shared_ptr<nn::LayerImpl>>("first", model->first.ptr()),
            {"second", model->second}})
        layer->around(nn::Seam::Profile, [&outputs, name = name](nn::Flow in, const auto& inner) {
          nn::Flow out = inner(std::move(in));
          outputs[name][out.where->micro] = out.x().detach();
          return out;
        });
      parallel::Pipeline pipe(*model, mesh,
                              pipeline::make(schedule, {.ranks = 2, .micros = kMicros}));
      torch::nn::BatchNorm2d whole_first(3), whole_second(3);
      whole_first->to(torch::kDouble);
      whole_second->to(torch::kDouble);
      for (int64_t step = 1; step <= 2; ++step) {
        // Micro-batch m of replica r has 1 + (m + r) % 3 rows; one has none.
        std::vector<std::vector<at::Tensor>> rows(kMicros);
        for (int64_t m = 0; m < kMicros; ++m)
          for (int64_t r = 0; r < 2; ++r) {
            const int64_t count = m == 1 && r == 1 ? 0 : 1 + (m + r) % 3;
            rows[static_cast<std::size_t>(m)].push_back(
                (torch::arange(count * 12, torch::kDouble) * 1.3 +
                 static_cast<double>(7 * m + 3 * r + step))
                    .sin()
                    .view({count, 3, 2, 2}));
          }
        const auto mine = static_cast<std::size_t>(mesh.coord(Axis::Replica));
        std::vector<nn::MicroBatch> micros;
        for (int64_t m = 0; m < kMicros; ++m) {
          auto where = std::make_shared<nn::Where>();
          where->step = step;
          where->micro = m;
          const at::Tensor& x = rows[static_cast<std::size_t>(m)][mine];
          micros.push_back({nn::Flow(x, std::move(where)), torch::zeros({x.size(0)})});
        }
        pipe.run(micros);
        pipe.finish();
        std::vector<at::Tensor> first_outputs;
        for (int64_t m = 0; m < kMicros; ++m) {
          const auto& parts = rows[static_cast<std::size_t>(m)];
          torch::nn::BatchNorm2d of_first(3), of_second(3);
          of_first->to(torch::kDouble);
          of_second->to(torch::kDouble);
          const at::Tensor one = of_first->forward(at::cat(parts)).relu().detach();
          const at::Tensor two = of_second->forward(one).detach();
          first_outputs.push_back(one);
          const int64_t begin = mine == 0 ? 0 : parts[0].size(0), count = parts[mine].size(0);
          const bool is_first = mesh.coord(Axis::Pipe) == 0;
          EXPECT_LE(distance(outputs[is_first ? "first" : "second"].at(m),
                             (is_first ? one : two).narrow(0, begin, count)),
                    kSameStatistics)
              << schedule << " " << m;
        }
        std::vector<at::Tensor> all;
        for (const auto& parts : rows) all.push_back(at::cat(parts));
        whole_first->forward(at::cat(all));
        whole_second->forward(at::cat(first_outputs));
      }
      const auto expected =
          mesh.coord(Axis::Pipe) == 0 ? whole_first->buffers() : whole_second->buffers();
      const auto found = pipe.buffers();
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_LE(distance(found[i].second, expected[i]), kSameStatistics)
            << schedule << " " << found[i].first;
    });
  }
}

/// A ResNet in float64 that trains on Stripes.
class ImageTraining {
 public:
  ImageTraining(const Communicator& world, config::Config config, const Degrees& degrees)
      : config_(std::move(config)),
        mesh_(world, degrees),
        trainer_(config_, mesh_,
                 train::build([this](const Mesh& on) { return make_images(config_, on); }, mesh_),
                 8) {
    at::set_num_threads(1);
  }
  static config::Config config() {
    config::Config made = image_config("resnet");
    made.precision.compute = made.precision.reduce = config::Dtype::Float64;
    return made;
  }

  double step(int64_t step) {
    const data::Order order(1, data_.size(), config_.batch.global);
    const Communicator samples = mesh_.samples();
    return trainer_
        .step(step, data::Loader::read(data_, order, samples.rank(), samples.size(), step - 1))
        .loss;
  }
  void save(const std::string& folder, int64_t step) {
    checkpoint::Saver saver(folder, mesh_, 1, {.after_failure = ""});
    saver.save(step, trainer_.state());
    EXPECT_EQ(saver.wait().value_or(""), "");
  }
  void load(const std::string& folder) {
    const auto saved = checkpoint::load_newest(
        folder, mesh_.world(),
        [&, own = trainer_.own_state()](format::Checkpoint& one) { trainer_.load(one, own); });
    ASSERT_TRUE(saved.has_value());
    trainer_.restore();
  }
  std::map<std::string, at::Tensor> buffers() const {
    std::map<std::string, at::Tensor> all;
    for (const auto& [name, tensor] : trainer_.attached().buffers()) all[name] = tensor.clone();
    return all;
  }
  double evaluate() { return trainer_.evaluate(Stripes(10, 60), 0).loss; }

 private:
  config::Config config_;
  Mesh mesh_;
  train::Trainer trainer_;
  Stripes data_;
};

TEST(BatchNormInCheckpoints, ContinuesOnAnyMeshAndToTheBitOnItsOwn) {
  const Degrees meshes[] = {
      {}, {.replica = 2}, {.shard = 3}, {.pipe = 2}, {.pipe = 2, .replica = 2}};
  for (const Degrees& from : {Degrees{.replica = 3}, Degrees{.pipe = 2, .shard = 2}}) {
    const Scratch scratch;
    std::map<std::string, at::Tensor> saved;
    double next = 0, evaluated = 0;
    run_world(kThreads, from.world(), [&](const Communicator& world) {
      ImageTraining run(world, ImageTraining::config(), from);
      for (int64_t step = 1; step <= 2; ++step) run.step(step);
      run.save(scratch / "", 2);
      const auto mine = run.buffers();
      const double evaluation = run.evaluate(), loss = run.step(3);
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      saved.insert(mine.begin(), mine.end());
      evaluated = evaluation;
      next = loss;
    });
    EXPECT_EQ(saved.size(), 60u);
    for (const Degrees& to : meshes) {
      run_world(kThreads, to.world(), [&](const Communicator& world) {
        ImageTraining run(world, ImageTraining::config(), to);
        run.load(scratch / "");
        for (const auto& [name, tensor] : run.buffers()) {
          EXPECT_TRUE(tensor.equal(saved.at(name))) << name << " on " << to_string(to);
          EXPECT_TRUE(tensor.dim() > 0 || tensor.item<int64_t>() == 2) << name;
        }
        EXPECT_NEAR(run.evaluate(), evaluated, 1e-10) << to_string(to);
        EXPECT_NEAR(run.step(3), next, 1e-9) << to_string(to);
      });
    }
    run_world(kThreads, from.world(), [&](const Communicator& world) {
      ImageTraining again(world, ImageTraining::config(), from);
      again.load(scratch / "");
      EXPECT_EQ(again.step(3), next) << "to the bit";
    });
  }
}

TEST(BatchNormInPipelines, CountNoCallThatTimesTheLayers) {
  std::map<std::string, at::Tensor> wanted;
  for (const auto by : {config::Balance::By::Parameters, config::Balance::By::Time}) {
    run_world(kThreads, 2, [&](const Communicator& world) {
      config::Config config = ImageTraining::config();
      config.pipeline.balance.by = by;
      ImageTraining run(world, config, {.pipe = 2});
      for (int64_t step = 1; step <= 2; ++step) run.step(step);
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      for (const auto& [name, tensor] : run.buffers()) {
        EXPECT_TRUE(tensor.dim() > 0 || tensor.item<int64_t>() == 2) << name;
        if (by == config::Balance::By::Parameters)
          wanted[name] = tensor;
        else
          EXPECT_LE(distance(tensor, wanted.at(name)), 1e-10) << name;
      }
    });
  }
  EXPECT_EQ(wanted.size(), 60u);
}

TEST(BatchNormInLocalUpdates, EvaluatesAndSavesTheMeanOfTheReplicas) {
  const Scratch scratch;
  config::Config config = ImageTraining::config();
  config.sync.kind = config::SyncKind::Average;
  config.sync.every = 2;
  std::vector<std::map<std::string, at::Tensor>> own(2);
  double evaluated = 0;
  run_world(kThreads, 2, [&](const Communicator& world) {
    ImageTraining run(world, config, {.replica = 2});
    for (int64_t step = 1; step <= 2; ++step) run.step(step);
    const auto before = run.buffers();
    const double loss = run.evaluate();
    for (const auto& [name, tensor] : run.buffers()) EXPECT_TRUE(tensor.equal(before.at(name)));
    if (world.rank() == 0) evaluated = loss;
    own[static_cast<std::size_t>(world.rank())] = before;
    run.save(scratch / "", 2);
  });
  const std::string name = "bn1.running_mean";
  EXPECT_GT(distance(own[0].at(name), own[1].at(name)), 1e-6) << "each has seen its own samples";
  run_world(kThreads, 1, [&](const Communicator& world) {
    ImageTraining alone(world, ImageTraining::config(), {});
    alone.load(scratch / "");
    for (const auto& [each, tensor] : alone.buffers()) {
      if (!tensor.is_floating_point()) {
        EXPECT_TRUE(tensor.equal(own[0].at(each))) << each;
        continue;
      }
      EXPECT_LE(distance(tensor, (own[0].at(each) + own[1].at(each)) / 2), kSameStatistics) << each;
    }
    EXPECT_NEAR(alone.evaluate(), evaluated, 1e-10);
  });
}

}  // namespace
}  // namespace trireme::test
