// Batch norm over two ranks is torch.nn.SyncBatchNorm, which computes only on GPUs.
#include <gmock/gmock.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "support/command.h"
#include "support/on_gpu.h"
#include "support/run_ranks.h"
#include "support/training.h"
#include "trireme/core/json.h"
#include "trireme/mesh/init.h"
#include "trireme/nn/batch_norm.h"
#include "trireme/nn/parameters.h"

namespace trireme::test {
namespace {

constexpr double kSameOnGpu = 1e-12;  // of numbers near 1, in float64

/// What the two ranks are given.
struct SyncCase {
  std::string name;
  std::vector<int64_t> rows;   ///< of each rank
  std::vector<int64_t> shape;  ///< of one row, channels first
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
};

const std::vector<SyncCase> kSyncCases = {
    {"unequal", {3, 5}, {5, 4, 3}},
    {"one-row", {1, 7}, {33, 2, 2}},
    {"channels-last", {6, 2}, {8, 5, 5}, at::MemoryFormat::ChannelsLast},
    {"one-value", {1, 7}, {4}},
    {"no-row", {4, 0}, {3, 6, 2}},
};

/// Writes tensors for torch_sync_batch_norm.py.
class RankFolder {
 public:
  explicit RankFolder(std::filesystem::path path) : path_(std::move(path)) {
    std::filesystem::create_directories(path_);
  }
  ~RankFolder() { std::ofstream(path_ / "shapes.json") << shapes_.dump(); }

  void put(const std::string& name, const at::Tensor& tensor) {
    const at::Tensor values =
        tensor.detach().to(torch::kCPU, torch::kDouble).contiguous(at::MemoryFormat::Contiguous);
    shapes_[name] = values.sizes().vec();
    std::ofstream(path_ / (name + ".bin"), std::ios::binary)
        .write(static_cast<const char*>(values.data_ptr()),
               static_cast<std::streamsize>(values.nbytes()));
  }

 private:
  std::filesystem::path path_;
  core::Json shapes_ = core::Json::object();
};

/// Sets the parameters and buffers, runs forward and backward, and writes all of it.
template <class Norm>
void run_sync_norm(Norm& norm, const SyncCase& given, int rank, RankFolder& folder) {
  const int64_t total = std::accumulate(given.rows.begin(), given.rows.end(), int64_t{0});
  const int64_t count = given.rows[static_cast<std::size_t>(rank)];
  std::vector<int64_t> shape = given.shape;
  shape.insert(shape.begin(), total);
  auto generator = at::detail::createCPUGenerator(7);
  const auto normal = [&](at::IntArrayRef sizes) {
    return at::randn(sizes, generator, at::kDouble);
  };
  const auto of_rank = [&](const at::Tensor& all) {
    return all.narrow(0, rank == 0 ? 0 : given.rows[0], count).cuda().contiguous(given.format);
  };
  {
    const at::NoGradGuard guard;
    norm->weight.copy_(normal(given.shape[0]) + 1);
    norm->bias.copy_(normal(given.shape[0]));
    norm->running_mean.copy_(normal(given.shape[0]));
    norm->running_var.copy_(normal(given.shape[0]).square() + 0.5);
  }
  const at::Tensor x = of_rank(normal(shape) + 3).requires_grad_(), dy = of_rank(normal(shape));
  for (const auto& [name, tensor] :
       {std::pair("x", x), std::pair("dy", dy), std::pair("weight", norm->weight),
        std::pair("bias", norm->bias), std::pair("mean", norm->running_mean),
        std::pair("var", norm->running_var)})
    folder.put(name, tensor);
  const at::Tensor y = norm->forward(x);
  y.backward(dy);
  EXPECT_TRUE(y.is_cuda());
  for (const auto& [name, tensor] :
       {std::pair("y", y), std::pair("dx", x.grad()), std::pair("dweight", norm->weight.grad()),
        std::pair("dbias", norm->bias.grad()), std::pair("new_mean", norm->running_mean),
        std::pair("new_var", norm->running_var), std::pair("batches", norm->num_batches_tracked)})
    folder.put(name, tensor);
}

/// Both of ours on this rank: our layer, and a module of torch's that was converted.
core::Json run_sync_norms(const Mesh& mesh, int rank, const std::filesystem::path& folder) {
  core::Json manifest = core::Json::object();
  const auto add = [&](const SyncCase& one, const std::string& name) {
    manifest[name] = {{"channels", one.shape[0]},
                      {"channels_last", one.format == at::MemoryFormat::ChannelsLast ? 1 : 0}};
    return RankFolder(folder / name / std::to_string(rank));
  };
  for (const SyncCase& one : kSyncCases) {
    RankFolder of_layer = add(one, one.name);
    nn::BatchNorm layer(one.shape[0]);
    nn::initialize(*layer, 1);
    layer->to(at::kCUDA, at::kDouble);
    nn::attach_batch_norms(*layer, mesh);
    run_sync_norm(layer, one, rank, of_layer);
    if (one.shape.size() != 3) continue;
    RankFolder of_converted = add(one, one.name + "-converted");
    torch::nn::BatchNorm2d module(one.shape[0]);
    module->to(at::kCUDA, at::kDouble);
    nn::convert_sync_batch_norm(*module, mesh);
    run_sync_norm(module, one, rank, of_converted);
  }
  return manifest;
}

TEST(SyncBatchNorm, OnAGpuIsTorchs) {
  NEEDS_GPU();
  run_ranks(
      2,
      [](const Rank& me) {
        const std::string store = (me.scratch / "store").string();
        const auto world = init("file://" + store + "?rank=" + std::to_string(me.rank) + "&size=2");
        const std::filesystem::path folder = me.scratch / "cases";
        const core::Json manifest = run_sync_norms(Mesh(world, {.replica = 2}), me.rank, folder);
        if (me.rank == 0) std::ofstream(folder / "manifest.json") << manifest.dump();
        world.barrier();
        const auto result = run_command(
            {python_with_torch(), TRIREME_SOURCE_DIR "/tests/e2e/torch_sync_batch_norm.py", folder,
             std::to_string(me.rank), "2"},
            {.deadline = std::chrono::seconds(120)});
        ASSERT_EQ(result.code, 0) << result.err;
        const auto report = core::parse_json(result.out, "torch_sync_batch_norm.py's answer");
        ASSERT_EQ(report.size(), kSyncCases.size() + 4) << "our layer, and torch's own of images";
        for (const auto& [name, results] : report.items()) {
          EXPECT_EQ(results.size(), 7u) << name;
          for (const auto& [tensor, apart] : results.items())
            EXPECT_LE(apart.get<double>(), kSameOnGpu) << name << " " << tensor;
        }
      },
      {.deadline = std::chrono::seconds(180)});
}

}  // namespace
}  // namespace trireme::test
