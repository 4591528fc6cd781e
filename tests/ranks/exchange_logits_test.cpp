// The logits of a model that transformers made, and of one that we trained, here and there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/arange.h>

#include <filesystem>
#include <fstream>

#include "models/registry.h"
#include "support/backends.h"
#include "support/hf_peer.h"
#include "support/real_text.h"
#include "trireme/checkpoint/resume.h"
#include "trireme/config/load.h"
#include "trireme/config/mesh.h"
#include "trireme/exchange/start.h"
#include "trireme/format/find_step.h"
#include "trireme/nn/bind.h"
#include "trireme/nn/parameters.h"
#include "trireme/train/first_weights.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using test::must_ckpt;
using test::must_peer;
using test::Scratch;

/// The model in a folder, on one rank in float32.
std::shared_ptr<nn::ModelImpl> load(const std::string& folder) {
  const config::Config config =
      config::parse("model.from = \"" + folder + "\"", "a test", {}, exchange::complete_model);
  auto model = models::make_model(config, mesh_of_one());
  nn::move_to(*model, at::kFloat, at::kCPU);
  nn::initialize(*model, 1);
  checkpoint::State state;
  for (const nn::Parameter& one : nn::parameters_of(*model))
    state.items.push_back(checkpoint::whole(one.name, one.tensor));
  checkpoint::load(*exchange::open_weights(config).source, state);
  model->eval();
  return model;
}

/// A tensor that hf_peer.py left beside the model.
at::Tensor answer(const std::string& folder, const std::string& name, at::ScalarType dtype) {
  format::SafetensorsReader reader(folder + "/answers.safetensors");
  const format::Entry& entry = *reader.find(name);
  at::Tensor tensor = at::empty(entry.shape, dtype);
  reader.read(name, 0, entry.bytes, tensor.data_ptr());
  return tensor;
}

void expect_same_answers(nn::ModelImpl& model, const std::string& theirs) {
  const at::NoGradGuard guard;
  const at::Tensor tokens = answer(theirs, "tokens", at::kLong);
  const at::Tensor logits = model.forward(nn::Flow(tokens)).x();
  const double apart = (logits - answer(theirs, "logits", at::kFloat)).abs().max().item<double>();
  EXPECT_LT(apart, 1e-4) << "the largest logit is " << logits.abs().max().item<double>();
  // The same text, each token the likeliest.
  const at::Tensor text = answer(theirs, "text", at::kLong);
  at::Tensor ours = text.slice(1, 0, 5);
  while (ours.size(1) < text.size(1)) {
    const at::Tensor last = model.forward(nn::Flow(ours)).x().select(1, -1);
    ours = at::cat({ours, last.argmax(-1, true)}, 1);
  }
  EXPECT_TRUE(at::equal(ours, text)) << ours << text;
}

TEST(ExchangeLogits, OfModelsOfTransformersAreTheirs) {
  const Scratch scratch;
  int models = 0;
  for (const auto& folder : fs::directory_iterator(test::models_of_transformers())) {
    SCOPED_TRACE(folder.path());
    must_ckpt({"import", folder.path(), scratch / "ours"});
    expect_same_answers(*load(folder.path()), folder.path());
    expect_same_answers(*load(scratch / "ours"), folder.path());
    fs::remove_all(scratch / "ours");
    ++models;
  }
  EXPECT_EQ(models, test::kNumModelsOfTransformers);
}

/// Keeps the logits of every call that reaches the model's head. The head's own call computes only
/// the loss.
void record_logits(nn::ModelImpl& model, at::Tensor& logits) {
  const nn::Chain chain = model.chain();
  const auto norm = chain.head.layers.front(), head = chain.head.layers.back();
  norm->around(nn::Seam::Profile, [&logits, head](nn::Flow in, const nn::LayerImpl::Call& inner) {
    nn::Flow out = inner(std::move(in));
    logits = head->forward(out).x().clone();
    return out;
  });
}

/// The logits of a training run that starts from the folder with these keys, on the ranks that
/// have the head; `step`: it continues from that checkpoint. Collective.
at::Tensor logits_on(const comm::Communicator& world, const std::string& folder,
                     const std::string& keys, const at::Tensor& tokens,
                     const std::string& step = "") {
  const config::Config config = config::parse(
      fmt::format("model.from = \"{}\"\nrun.device = \"cpu\"\nprecision.compute = \"float64\"\n"
                  "pipeline.balance = \"params\"\nmesh.replica = 1\n{}",
                  folder, keys),
      "a test", {}, exchange::complete_model);
  const Mesh mesh(world, config::degrees_of(config, world.size()));
  train::Trainer trainer(
      config, mesh,
      train::build([&](const Mesh& on) { return models::make_model(config, on); }, mesh), 1);
  train::load_first_weights(config, world, trainer);
  if (!step.empty()) {
    format::Checkpoint saved = checkpoint::open(step);
    trainer.load(saved, trainer.own_state());
    trainer.restore();
  }
  at::Tensor logits;
  record_logits(trainer.model(), logits);
  trainer.model().eval();
  trainer.attached().evaluate({{nn::Flow(tokens), tokens}});
  return logits;
}

TEST(ExchangeLogits, OfOneRankAreThoseOfEveryMesh) {
  for (const std::string name :
       {"gpt2", "gpt2-untied", "llama", "llama-tied", "llama-yarn", "qwen", "qwen-tied"}) {
    SCOPED_TRACE(name);
    const std::string folder = test::models_of_transformers() + "/" + name;
    const at::Tensor tokens = answer(folder, "tokens", at::kLong);
    const at::Tensor one = logits_on(mesh_of_one().world(), folder, "", tokens);
    ASSERT_TRUE(one.defined());
    const double theirs = (one - answer(folder, "logits", at::kFloat)).abs().max().item<double>();
    EXPECT_LT(theirs, 1e-4);
    const double largest = one.abs().max().item<double>();
    for (const std::string mesh : {"mesh.tensor = 2", "mesh.shard = 2", "mesh.pipe = 2"}) {
      test::run_world(test::kThreads, 2, [&](const comm::Communicator& world) {
        at::set_num_threads(1);
        const at::Tensor cut = logits_on(world, folder, mesh, tokens);
        ASSERT_EQ(cut.defined(), mesh != "mesh.pipe = 2" || world.rank() == 1) << mesh;
        if (!cut.defined()) return;
        ASSERT_EQ(cut.sizes(), one.sizes()) << mesh;
        EXPECT_LE((cut - one).abs().max().item<double>(), 1e-12 * largest)
            << mesh << ", rank " << world.rank();
      });
    }
  }
}

/// Adapters of a model of transformers are trained, merged and exported; that is what the model
/// with its adapters says.
TEST(ExchangeLogits, OfAdaptersThatWereMergedAreTheSameInTransformers) {
  const Scratch scratch;
  const std::string lora = "lora.rank = 4\nlora.alpha = 8\nlora.targets = [\"*\"]\n";
  for (const std::string name : {"gpt2", "llama"}) {
    SCOPED_TRACE(name);
    const std::string base = test::models_of_transformers() + "/" + name, run = scratch / name,
                      config = run + ".toml", merged = run + "-merged", theirs = run + "-hf";
    std::ofstream(config) << "model.from = \"" << base << "\"\n"
                          << lora
                          << "run.steps = 20\nrun.threads = 1\nbatch.global = 8\n"
                             "optim.lr = 0.01\nmesh.tensor = 2\n";
    test::must_run(test::train_arguments(config, run));
    must_ckpt({"merge", run, merged});
    must_ckpt({"export", merged, theirs});
    must_peer({"answer", theirs});
    expect_same_answers(*load(merged), theirs);
    const at::Tensor tokens = answer(base, "tokens", at::kLong);
    const at::Tensor adapted =
        logits_on(mesh_of_one().world(), base, lora, tokens, format::find_step(run));
    const auto apart = [&](const std::string& folder) {
      return (adapted - answer(folder, "logits", at::kFloat)).abs().max().item<double>();
    };
    EXPECT_LT(apart(theirs), 1e-4);
    EXPECT_GT(apart(base), 0.1) << "the adapters have learned nothing";
  }
}

/// From the text to Python and back: a tokenizer and tokens of the Bible, a model that learned some
/// of it, its export, and what each of them says to a prompt.
TEST(ExchangeLogits, OfAModelThatLearnedATextAreTheSameInTransformers) {
  const Scratch scratch;
  const std::string text = test::put_text(scratch), tokenizer = scratch / "bpe";
  test::must_run({test::kTrireme, "data", "train-tokenizer", tokenizer, text, "--vocab", "600"});
  test::must_run(
      {test::kTrireme, "data", "build", scratch / "built", text, "--tokenizer", tokenizer});
  const std::vector<std::string> kinds = {"gpt", "llama"};
  for (const std::string& kind : kinds) {
    SCOPED_TRACE(kind);
    const std::string config = scratch / "learn.toml", run = scratch / kind;
    std::ofstream(config) << "run.steps = 80\nmodel.kind = \"" << kind << "\"\n"
                          << "model.layers = 2\nmodel.hidden = 48\nmodel.heads = 4\n"
                             "model.kv_heads = "
                          << (kind == "gpt" ? 4 : 2)
                          << "\nmodel.seq = 48\nmodel.vocab = 600\noptim.lr = 5e-3\n"
                             "batch.global = 16\nrun.threads = 1\ndata.kind = \"tokens\"\n"
                             "data.path = \""
                          << scratch / "built.bin"
                          << "\"\n";
    test::must_run(test::train_arguments(config, run));
    const auto losses = test::numbers_of(run, "loss");
    EXPECT_LT(losses.back(), losses.front() - 1) << "it learned something";
    must_ckpt({"export", run, run + "-hf", "--tokenizer", tokenizer});
    EXPECT_EQ(test::bytes_of(run + "-hf/tokenizer.json"),
              test::bytes_of(tokenizer + "/tokenizer.json"));
    EXPECT_TRUE(fs::exists(run + "-hf/generation_config.json"));
  }
  must_peer({"answer", scratch / "gpt-hf", scratch / "llama-hf"});
  for (const std::string& kind : kinds) {
    SCOPED_TRACE(kind);
    const std::string ours = scratch / kind, theirs = ours + "-hf";
    expect_same_answers(*load(ours), theirs);
    const std::string prompt = "And the LORD said unto";
    const std::string said = must_peer({"write", theirs, "24", prompt});
    EXPECT_THAT(said, testing::StartsWith(prompt));
    EXPECT_GT(said.size(), prompt.size() + 24) << "most tokens have several letters";
    const auto generated = [&](std::vector<std::string> words) {
      words.insert(words.begin(), {test::kTrireme, "generate"});
      words.insert(words.end(), {"--prompt", prompt, "--temperature", "0", "--tokens", "24"});
      return test::must_run(words);
    };
    EXPECT_EQ(generated({ours, "--tokenizer", tokenizer}), said);
    EXPECT_EQ(generated({theirs}), said);
  }
}

}  // namespace
}  // namespace trireme
