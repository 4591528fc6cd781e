#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "cli/config_text.h"
#include "cli/confusion_svg.h"
#include "cli/rank_commands.h"
#include "models/registry.h"
#include "trireme/config/mesh.h"
#include "trireme/core/error.h"
#include "trireme/format/file.h"
#include "trireme/infer/measure.h"
#include "trireme/infer/weights.h"
#include "trireme/train/datasets.h"
#include "trireme/train/world.h"

namespace trireme::cli {

namespace {

/// The data that the model is measured on, and what people call it: data.valid; the test images of
/// a data set that has some; the training data.
struct Measuring {
  std::shared_ptr<const data::Dataset> data;
  const char* name;
};
Measuring data_of(config::Config config) {
  using Kind = config::DataKind;
  if (config.data.kind == Kind::Markov || !config.data.valid.empty())
    return {train::make_valid_dataset(config), "the validation data"};
  std::error_code ignored;
  const bool has_test = config.data.kind == Kind::Idx || config.data.kind == Kind::Cifar;
  if (!has_test || !std::filesystem::is_directory(config.data.path, ignored))
    return {train::make_dataset(config), "the training data (data.valid is empty)"};
  config.data.valid = config.data.path;
  return {train::make_valid_dataset(config), "the test images"};
}

/// Without an optimizer the weights fit where training needs a shard or a stage: those axes become
/// copies.
Degrees copies_of(const Degrees& trained) {
  return {.replica = trained.pipe * trained.replica * trained.shard * trained.context,
          .tensor = trained.tensor};
}

at::ScalarType dtype_of(const config::Config& config, bool gpu) {
  switch (config.precision.compute) {
    case config::Dtype::Float64: return at::kDouble;
    case config::Dtype::BFloat16: return gpu ? at::kBFloat16 : at::kFloat;
    case config::Dtype::Float16: return gpu ? at::kHalf : at::kFloat;
    case config::Dtype::Float32: break;
  }
  return at::kFloat;
}

void print(const config::Config& config, const infer::Measured& of) {
  const double loss = of.loss();
  fmt::print("loss        {:.4f}\n", loss);
  if (!config.model.has_images()) fmt::print("perplexity  {:.4g}\n", std::exp(loss));
  fmt::print("accuracy    {:.2f} %  ({} of {}{})\n", 100 * of.accuracy(), of.correct, of.targets,
             config.model.has_images() ? "" : " tokens");
}

int measure_on(const comm::Communicator& world, config::Config config,
               const infer::StoredModel& stored, const std::string& out) {
  const Degrees degrees = copies_of(config::degrees_of(config, world.size()));
  const Mesh mesh(world, degrees, train::pick_device(config, world));
  config.tensor.sequence = false;  // the head sees a few positions at a time
  config.lora = {};                // merged by now; open_weights refuses adapters alone
  const Measuring measuring = data_of(config);
  const auto weights = infer::open_weights(stored, config);
  const auto model =
      infer::load_model(*weights, mesh, dtype_of(config, mesh.device().is_cuda()),
                        [&](const Mesh& on) { return models::make_model(config, on); });
  const infer::Measured measured =
      infer::measure(*model, *measuring.data, mesh,
                     {.rows = config.batch.micro,
                      .samples = config.eval.batches * config.batch.global,
                      .classes = config.model.has_images() ? config.model.classes : 0});
  if (world.rank() == 0) {
    fmt::print("{}, on {} samples of {}\n", stored.folder, measured.samples, measuring.name);
    print(config, measured);
    std::fflush(stdout);
    if (!out.empty()) format::write_file(out, draw_confusions(measured.confusions));
  }
  world.barrier();  // no rank exits before the result is printed
  return 0;
}

}  // namespace

int eval(const std::vector<std::string>& args) {
  const config::Config config = load_config(args.at(2), {args.begin() + 3, args.end()});
  const infer::StoredModel stored = infer::find_model(args.at(0));
  const std::string& out = args.at(1);
  if (!out.empty() && !config.model.has_images())
    throw ConfigError(
        fmt::format("--out {}: a confusion matrix is of images, and model.kind is \"{}\"", out,
                    config.model.kind));
  return train::with_ranks(config, [&](const comm::Communicator& world) {
    return measure_on(world, config, stored, out);
  });
}

}  // namespace trireme::cli
