// `trireme ckpt import` and `export`: the same bits in other files, whole or absent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "support/command.h"
#include "support/hf_model.h"
#include "support/scratch.h"
#include "trireme/format/load.h"

namespace trireme {
namespace {

using test::CommandResult;
using test::hf_gpt2;
using test::hf_llama;
using test::HfModel;
using test::HfSizes;
using test::Scratch;
using ::testing::HasSubstr;

bool is_there(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

CommandResult run_ckpt(std::vector<std::string> args) {
  args.insert(args.begin(), {test::kTrireme, "ckpt"});
  return test::run_command(std::move(args));
}

std::string must(std::vector<std::string> args) {
  const auto result = run_ckpt(std::move(args));
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  return result.out;
}

/// Every tensor of a folder, by name.
std::map<std::string, HfModel::Tensor> tensors_in(const std::string& folder) {
  std::vector<std::string> files;
  if (is_there(folder + "/model.safetensors")) {
    files = {"model.safetensors"};
  } else {
    std::set<std::string> names;
    const auto index = core::parse_json(
        format::read_file(folder + "/model.safetensors.index.json", 1 << 20), "the index");
    for (const auto& [name, file] : index.at("weight_map").items()) names.insert(file);
    files.assign(names.begin(), names.end());
  }
  std::map<std::string, HfModel::Tensor> all;
  for (const std::string& file : files) {
    format::SafetensorsReader reader(folder + "/" + file);
    EXPECT_EQ(reader.metadata().at("format"), "pt");
    for (const format::Entry& entry : reader.entries()) {
      std::string bytes(static_cast<std::size_t>(entry.bytes), '\0');
      reader.read(entry.name, 0, entry.bytes, bytes.data());
      all[entry.name] = {entry.dtype, entry.shape, bytes};
    }
  }
  return all;
}

void expect_same(const std::map<std::string, HfModel::Tensor>& got,
                 const std::map<std::string, HfModel::Tensor>& wanted) {
  EXPECT_EQ(got.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_EQ(got.at(name).dtype, tensor.dtype) << name;
    EXPECT_EQ(got.at(name).shape, tensor.shape) << name;
    EXPECT_TRUE(got.at(name).bytes == tensor.bytes) << name << " has other bits";
  }
}

/// One of our tensors, whole.
std::string ours(const std::string& step, const std::string& name) {
  format::Checkpoint saved(step);
  const auto& info = saved.index().tensors.at(name);
  std::string bytes(static_cast<std::size_t>(*format::checked_bytes(info.dtype, info.shape)), '\0');
  saved.read(format::whole_piece(name, info.shape), info.dtype, bytes.data());
  return bytes;
}

TEST(Exchange, KeepsEveryBitThereAndBack) {
  const Scratch scratch;
  int number = 0;
  const auto round_trip = [&](const HfModel& model, int files) {
    SCOPED_TRACE(model.config.dump());
    const std::string place = scratch / std::to_string(number++);
    model.write(place, files);
    must({"import", place, place + "-ours"});
    EXPECT_THAT(must({"verify", place + "-ours"}), HasSubstr("is whole"));
    must({"export", place + "-ours", place + "-back", "--max-shard-size", "2000"});
    expect_same(tensors_in(place + "-back"), model.tensors);
    // What the model does not determine is kept, too.
    const auto back = core::parse_json(format::read_file(place + "-back/config.json", 1 << 20), "");
    for (const auto& [key, value] : model.config.items()) EXPECT_EQ(back.at(key), value) << key;
  };
  for (const char* dtype : {"F32", "BF16", "F16"}) {
    round_trip(hf_gpt2(dtype), 1);
    round_trip(hf_gpt2(dtype, {.tie = false}), 3);
    round_trip(hf_llama(dtype, {.kv_heads = 1, .tie = false}), 2);
    round_trip(hf_llama(dtype, {.heads = 2, .kv_heads = 2}, true), 1);
  }
}

TEST(Exchange, PutsElementsWhereOurLayersExpectThem) {
  const Scratch scratch;
  const HfModel gpt = hf_gpt2("F32");
  gpt.write(scratch / "gpt");
  must({"import", scratch / "gpt", scratch / "gpt-ours"});
  // Conv1D keeps [inputs, outputs], a Linear [outputs, inputs].
  const std::string& theirs = gpt.tensors.at("transformer.h.1.attn.c_attn.weight").bytes;
  const std::string own = ours(scratch / "gpt-ours", "h.1.attn.c_attn.weight");
  for (std::size_t out = 0; out < 36; ++out)
    for (std::size_t in = 0; in < 12; ++in)
      ASSERT_EQ(own.substr((out * 12 + in) * 4, 4), theirs.substr((in * 36 + out) * 4, 4));
  const HfModel llama = hf_llama("BF16", {.kv_heads = 1}, true);
  llama.write(scratch / "llama");
  must({"import", scratch / "llama", scratch / "llama-ours"});
  const auto stacked = [&](std::vector<std::string> names) {
    std::string all;
    for (const std::string& name : names) all += llama.tensors.at("model.layers.0." + name).bytes;
    return all;
  };
  EXPECT_TRUE(
      ours(scratch / "llama-ours", "layers.0.attn.qkv.weight") ==
      stacked({"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}));
  EXPECT_TRUE(ours(scratch / "llama-ours", "layers.0.attn.qkv.bias") ==
              stacked({"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}));
  EXPECT_TRUE(ours(scratch / "llama-ours", "layers.0.mlp.gate_up.weight") ==
              stacked({"mlp.gate_proj.weight", "mlp.up_proj.weight"}));
}

TEST(Exchange, CropsAndPadsTheVocabulary) {
  const Scratch scratch;
  const HfModel model = hf_llama("F32", {.tie = false});
  model.write(scratch / "hf");
  must({"import", scratch / "hf", scratch / "wide", "--vocab", "40"});
  const std::string wide = ours(scratch / "wide", "lm_head.weight");
  const std::string& narrow = model.tensors.at("lm_head.weight").bytes;
  EXPECT_EQ(wide.size(), 40u * 12 * 4);
  EXPECT_TRUE(wide.starts_with(narrow));
  const std::string mean = wide.substr(31 * 12 * 4, 12 * 4);
  for (std::size_t row = 32; row < 40; ++row) EXPECT_EQ(wide.substr(row * 12 * 4, 12 * 4), mean);
  must({"export", scratch / "wide", scratch / "back", "--vocab", "31"});
  expect_same(tensors_in(scratch / "back"), model.tensors);
  must({"export", scratch / "wide", scratch / "small", "--vocab", "5"});
  EXPECT_EQ(tensors_in(scratch / "small").at("lm_head.weight").bytes, narrow.substr(0, 5 * 12 * 4));
  const auto small =
      core::parse_json(format::read_file(scratch / "small/config.json", 1 << 20), "");
  EXPECT_EQ(small.at("vocab_size"), 5);
}

TEST(Exchange, RefusesAFolderThatDoesNotFit) {
  const Scratch scratch;
  int number = 0;
  const auto says = [&](const HfModel& model, const std::string& what) {
    const std::string place = scratch / std::to_string(number++);
    model.write(place);
    const auto result = run_ckpt({"import", place, place + "-ours"});
    EXPECT_EQ(result.code, 2) << result.out;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr(what));
    EXPECT_FALSE(is_there(place + "-ours"));
    EXPECT_FALSE(is_there(place + "-ours.tmp"));
  };
  HfModel bert = hf_gpt2("F32");
  bert.config["model_type"] = "bert";
  says(bert, "'model_type' is \"bert\", which is not built; there are gpt2, llama, qwen2");
  HfModel missing = hf_gpt2("F32");
  missing.tensors.erase("transformer.h.1.mlp.c_fc.bias");
  says(missing, "has no tensor 'transformer.h.1.mlp.c_fc.bias'");
  HfModel extra = hf_gpt2("F32");
  extra.add("score.weight", "F32", {2, 12});
  says(extra, "has a tensor 'score.weight' [2, 12]");
  HfModel other = hf_gpt2("F32");
  other.tensors.erase("transformer.wpe.weight");
  other.add("transformer.wpe.weight", "F32", {10, 13});
  says(other,
       "has tensor 'transformer.wpe.weight' as [10, 13], but by its config.json it is [10, 12]");
  HfModel whole = hf_gpt2("F32");
  whole.tensors.erase("transformer.ln_f.bias");
  whole.add("transformer.ln_f.bias", "I32", {12});
  says(whole, "'transformer.ln_f.bias' in I32");
  HfModel gelu = hf_gpt2("F32");
  gelu.config["activation_function"] = "relu";
  says(gelu, "'activation_function' is \"relu\", but only \"gelu_new\" is built");
  HfModel heads = hf_gpt2("F32");
  heads.config["n_head"] = 5;
  says(heads, "model.hidden = 12 is not a multiple of model.heads = 5");
  HfModel text = hf_gpt2("F32");
  text.config["n_layer"] = "two";
  says(text, "'n_layer' is \"two\", not a whole number");
}

}  // namespace
}  // namespace trireme
