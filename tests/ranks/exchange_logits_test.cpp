// The logits of a model that transformers made, and of one that we trained, here and there.
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "models/registry.h"
#include "support/hf_peer.h"
#include "trireme/checkpoint/resume.h"
#include "trireme/config/load.h"
#include "trireme/exchange/start.h"
#include "trireme/nn/bind.h"
#include "trireme/nn/parameters.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using test::must_ckpt;
using test::must_peer;
using test::Scratch;

/// The model in a folder, on one rank in float32.
std::shared_ptr<nn::ModelImpl> load(const std::string& folder) {
  const config::Config config = config::parse("model.from = \"" + folder + "\"", "a test", {},
                                              exchange::complete_model);
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
  const double apart =
      (logits - answer(theirs, "logits", at::kFloat)).abs().max().item<double>();
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
  EXPECT_EQ(models, 9);
}

TEST(ExchangeLogits, OfAModelThatLearnedATextAreTheSameInTransformers) {
  const Scratch scratch;
  // The text: this project's documents, as bytes.
  std::ofstream tokens(scratch / "text.bin", std::ios::binary);
  for (const auto& page : fs::directory_iterator(TRIREME_SOURCE_DIR "/docs")) {
    std::ifstream text(page.path(), std::ios::binary);
    for (char byte; text.get(byte);) tokens.put(byte).put('\0');
  }
  tokens.close();
  for (const std::string kind : {"gpt", "llama"}) {
    SCOPED_TRACE(kind);
    const std::string config = scratch / "learn.toml", run = scratch / kind;
    std::ofstream(config) << "run.steps = 120\nmodel.kind = \"" << kind << "\"\n"
                          << "model.layers = 2\nmodel.hidden = 48\nmodel.heads = 4\n"
                             "model.kv_heads = "
                          << (kind == "gpt" ? 4 : 2)
                          << "\nmodel.seq = 32\nmodel.vocab = 256\noptim.lr = 3e-3\n"
                             "batch.global = 16\nrun.threads = 1\ndata.path = \""
                          << scratch / "text.bin" << "\"\n";
    test::must_run(test::train_arguments(config, run));
    const auto losses = test::numbers_of(run, "loss");
    EXPECT_LT(losses.back(), losses.front() - 2) << "it learned something";
    must_ckpt({"export", run, run + "-hf"});
  }
  must_peer({"answer", scratch / "gpt-hf", scratch / "llama-hf"});
  for (const std::string kind : {"gpt", "llama"}) {
    SCOPED_TRACE(kind);
    expect_same_answers(*load(scratch / kind), scratch / kind + "-hf");
  }
}

}  // namespace
}  // namespace trireme
