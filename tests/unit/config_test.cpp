#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>

#include "support/config_support.h"
#include "trireme/config/keys.h"
#include "trireme/config/nearest.h"
#include "trireme/config/text.h"
#include "trireme/config/validate.h"

namespace trireme::config {
namespace {

/// Counts the fields of an aggregate: the most things that it can be initialised with.
struct Anything {
  template <class T>
  operator T() const;
};
template <class T, class... Fields>
constexpr std::size_t num_fields() {
  if constexpr (requires { T{Fields{}..., Anything{}}; })
    return num_fields<T, Fields..., Anything>();
  else
    return sizeof...(Fields);
}

template <class... Sections>
std::vector<std::size_t> fields_of(const Sections&...) {
  return {num_fields<Sections>()...};
}

TEST(ConfigTable, HasARowForEveryMember) {
  const auto& [run, model, data, batch, optim, lora, mesh, context, tensor, pipeline, precision,
               memory, sync, compress, comm, checkpoint, eval, log, check] = Config{};
  const auto fields =
      fields_of(run, model, data, batch, optim, lora, mesh, context, tensor, pipeline, precision,
                memory, sync, compress, comm, checkpoint, eval, log, check);
  std::vector<std::size_t> rows;
  for (const std::string_view section : sections())
    // A key that takes a word or a list stands for two members.
    rows.push_back(std::ranges::count(keys(), section, &Key::section) +
                   std::ranges::count_if(keys(), [&](const Key& key) {
                     return key.section() == section && key.or_tables;
                   }));
  EXPECT_EQ(rows, fields);
}

TEST(ConfigTable, NamesEachSectionAndKeyOnce) {
  std::set<std::string_view> names;
  for (const Key& key : keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.meaning.empty()) << key.name;
    EXPECT_EQ(find_key(key.name), &key);
  }
  EXPECT_EQ(std::set(sections().begin(), sections().end()).size(), sections().size());
}

// Copied from the page of keys that people rely on, not from the code; a line per section.
constexpr std::string_view kPage = R"(
run: dir="runs/default" seed=1 steps=200 epochs=0 device="auto" threads=0
     deterministic="auto" graph="auto"
model: kind="gpt" layers=4 hidden=128 heads=4 kv_heads=4 ffn=512 seq=128 vocab=256 dropout=0.0
       attention_dropout=0.0 tie=true
       head_dim=0 norm_eps=1e-05 qkv_bias=false rope_theta=10000.0 rope_pairs="halves"
       rope_scaling="none" rope_factor=1.0 rope_low=1.0 rope_high=4.0 rope_seq=0
       classes=10 image=32 channels=3 depth=18 stem="cifar" pixels="channels-first"
       batch_norm="sync" patch=4 from="" experts=8 top_k=2 capacity=0.0 balance=0.01
       router="softmax" z_loss=0.0 bias_rate=0.001 router_groups=1 router_top_groups=1
       shared_experts=0 expert_ffn=512 expert_gated=false expert_dropout=0.0
data: kind="markov" path="" valid="" tokenizer="" chat="" augment="none" workers=1 samples=8192
      classes=16 allow_change=false documents=false eod=-1
batch: global=32 micro=8
optim: kind="adamw" lr=0.001 betas=[0.9, 0.95] eps=1e-08 weight_decay=0.1 momentum=0.9 clip=1.0
       schedule="cosine" warmup=0 final=0.1 groups=[]
lora: rank=0 alpha=0.0 targets=[]
mesh: replica=0 shard=1 tensor=1 pipe=1 context=1 expert=1
context: kind="ring"
tensor: sequence=true
pipeline: schedule="1f1b" stages_per_rank=1 balance="time" keep_gathered=true vertical_sync=false lr_by_delay=false
precision: compute="float32" reduce="float32" master="float32" keep=[] loss_scale=65536.0 growth=2000
memory: recompute="none" shard="parameters" offload="none"
sync: kind="lockstep" every=1 seconds=0.0 after=0 momentum=0.9 time_constant=0.0 lr=1.0 nesterov=true fragments=1 delay=0 keep_own=0.5 inner_group=1 staleness=0 servers=1 copies=0 server_memory_mib=0 manager="" optimizer="" lr_by_staleness=false backup=false
compress: kind="none" ratio=0.01 rank=4 min_saving=1.0 feedback=true warmup=0 keep=[] transfers="none" gathers="none"
comm: backend="auto" timeout_s=300.0 bucket_mib=25.0 overlap_experts=false rate_mbit=0.0
checkpoint: every=0 keep=3 resume="auto"
eval: every=0 batches=0
log: every=10 trace=false tensorboard=false samples=false
check: hash_every=0 finite=true)";

TEST(ConfigDefaults, AreThoseOfThePage) {
  std::string ours;
  std::string_view section;
  for (const Key& key : keys()) {
    if (key.section() != section) ours += fmt::format("\n{}:", section = key.section());
    ours += fmt::format(" {}={}", key.last_name(), to_text(get(key, parse("", "empty.toml"))));
  }
  EXPECT_EQ(ours, std::regex_replace(std::string(kPage), std::regex("\n  +"), " "));
}

TEST(ConfigDefaults, FollowTheKeysThatTheyDependOn) {
  const Config config = parse("[model]\nhidden = 96\nheads = 6", "gpt.toml");
  EXPECT_EQ(config.model.kv_heads, 6);
  EXPECT_EQ(config.model.ffn, 384);
  EXPECT_EQ(parse("model.ffn = 7\nmodel.kv_heads = 2", "gpt.toml").model.ffn, 7);
  EXPECT_EQ(parse("run.epochs = 2", "gpt.toml").run.steps, 0);
}

TEST(ConfigRead, TakesEverySpellingOfTheSameThing) {
  const Config table = parse("[optim]\nlr = 3\nbetas = [0, 0.5]\n[run]\nsteps = 5\n", "a");
  EXPECT_EQ(table.optim.lr, 3.0);
  EXPECT_EQ(table.optim.betas, (std::vector<double>{0, 0.5}));
  EXPECT_EQ(parse("optim.lr = 3.0\noptim.betas = [0.0, 5e-1]\nrun.steps = 5", "a"), table);
  EXPECT_EQ(parse("optim = {lr = 3, betas = [0, 0.5]}\r\nrun = {steps = 0x5}\r\n", "a"), table);
  EXPECT_EQ(parse("\xEF\xBB\xBF[run]\nsteps = 5\n[optim]\nlr = 3e0\nbetas = [\n0,\n0.5,\n]", "a"),
            table);
}

TEST(ConfigRead, TakesTruthWithAndWithoutQuotes) {
  EXPECT_EQ(parse("", "a").run.deterministic, Deterministic::Auto);
  for (const char* text : {"true", "'true'"})
    EXPECT_EQ(parse(std::string("run.deterministic = ") + text, "a").run.deterministic,
              Deterministic::Yes);
  const std::string overrides[] = {"run.deterministic=false", "run.graph=off"};
  const Config config = parse("run.deterministic = true", "a", overrides);
  EXPECT_EQ(config.run.deterministic, Deterministic::No);
  EXPECT_EQ(config.run.graph, Graph::Off);
  EXPECT_EQ(parse(to_toml(config), "a"), config);
  EXPECT_EQ(first_difference(config, parse("", "a")), std::nullopt) << "a resumed run may differ";
}

TEST(ConfigRead, SaysWhereAndWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"[optim]\nkind = 'sgd'\nlearning_rate = 3",
       "gpt.toml:3:1: unknown key 'optim.learning_rate'; did you mean 'optim.lr'?"},
      {"# a\n\n# b\n\n[batch]\nmicro = 4\nglobal = \"many\"",
       "gpt.toml:7:10: batch.global = \"many\" is a string; it must be a whole number"},
      {"run.steps = -1", "gpt.toml:1:13: run.steps = -1 is out of range; it must be at least 0"},
      {"[run]\nsteps = 1e3",
       "gpt.toml:2:9: run.steps = 1000.0 is a decimal number; it must be a whole number"},
      {"run.dir = true", "gpt.toml:1:11: run.dir = true is a boolean; it must be a string"},
      {"run.dir = 2024-05-01", "gpt.toml:1:11: run.dir is a date or time; it must be a string"},
      {"run.dir = ''", "gpt.toml:1:11: run.dir = \"\" is empty; it must be some text"},
      {"tensor.sequence = 1",
       "gpt.toml:1:19: tensor.sequence = 1 is a whole number; it must be true or false"},
      {"optim.lr = nan", "gpt.toml:1:12: optim.lr = nan is not finite; it must be a finite number"},
      {"optim.lr = -inf",
       "gpt.toml:1:12: optim.lr = -inf is not finite; it must be a finite number"},
      {"compress.ratio = 0",
       "gpt.toml:1:18: compress.ratio = 0.0 is out of range; it must be more than 0 and at most 1"},
      {"model.dropout = 1.0",
       "gpt.toml:1:17: model.dropout = 1.0 is out of range; it must be at least 0 and less than 1"},
      {"model.hidden = 2147483648",
       "gpt.toml:1:16: model.hidden = 2147483648 is out of range; it must be at most 2147483647"},
      {"model.vocab = 1", "gpt.toml:1:15: model.vocab = 1 is out of range; it must be at least 2"},
      {"optim.betas = [0.9]", "gpt.toml:1:15: optim.betas = [0.9] has 1 number; it must have 2"},
      {"optim.betas = [0.9, 1]",
       "gpt.toml:1:15: optim.betas = [0.9, 1.0] is out of range; each must be at least 0 and less "
       "than 1"},
      {"optim.betas = [0.9, nan]",
       "gpt.toml:1:15: optim.betas = [0.9, nan] is not finite; it must hold finite numbers"},
      {"optim.betas = [0.9, 'x']",
       "gpt.toml:1:15: optim.betas is an array of other things; it must be an array of numbers"},
      {"model.kind = 'gtp'",
       "gpt.toml:1:14: model.kind = \"gtp\" is none of \"mlp\", \"gpt\", \"llama\", "
       "\"resnet\", \"vit\", \"moe-gpt\", \"moe-llama\"; did you mean "
       "\"gpt\"?"},
      {"run.device = 'abacus'",
       "gpt.toml:1:14: run.device = \"abacus\" is none of \"auto\", \"cpu\", \"cuda\""},
      {"\n[optimm]\nlr = 1", "gpt.toml:2:2: unknown section 'optimm'; did you mean 'optim'?"},
      {"[zebra]", "gpt.toml:1:2: unknown section 'zebra'"},
      {"lr = 1", "gpt.toml:1:1: unknown key 'lr'; did you mean 'optim.lr'?"},
      {"run = 3", "gpt.toml:1:7: 'run' is a section, not a key"},
      {"[run.steps]\nx = 1", "gpt.toml:1:1: run.steps is a table; it must be a whole number"},
      {"[model]\nzzz = 1", "gpt.toml:2:1: unknown key 'model.zzz'"}};
  for (const auto& [text, message] : cases) EXPECT_EQ(refusal(text), message);
}

TEST(ConfigRead, ReportsTheFirstMistakeInTheOrderOfTheFile) {
  EXPECT_THAT(refusal("[run]\nstepz = 1\n[batch]\nglobal = 0"), testing::HasSubstr(":2:1: "));
  EXPECT_THAT(refusal("[run]\nsteps = -1\nseed = -1\n[batch]\nglobal = 0"),
              testing::HasSubstr(":2:9: "));
  EXPECT_THAT(refusal("[run]\nsteps = 1\n[batch]\nglobal = 0", {"no"}),
              testing::HasSubstr(":4:10: "));
  EXPECT_THAT(refusal("model.hidden = 3", {"no"}), testing::StartsWith("override 'no'"));
}

TEST(ConfigRead, SaysWhereItIsNotToml) {
  EXPECT_EQ(refusal("[run\n"),
            "gpt.toml:1:5: not TOML: in a table header: expected ']', saw '\\n'");
  for (const auto& [text, place] : std::initializer_list<std::pair<std::string, std::string>>{
           {"[run]\nsteps =", "gpt.toml:2:8: not TOML: "},
           {"[run]\nsteps = 1\nsteps = 2", "gpt.toml:3:"},
           {"[run]\n[batch]\n[run]", "gpt.toml:3:"},
           {"run.seed = 9223372036854775808", "gpt.toml:1:31: not TOML: "}}) {
    EXPECT_THAT(refusal(text), testing::StartsWith(place));
    EXPECT_THAT(refusal(text), testing::HasSubstr(": not TOML: "));
  }
}

TEST(ConfigNearest, KnowsSlipsWordsAndInitials) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("gtp", "gpt"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(nearest_key("model.hiden"), "model.hidden");
  EXPECT_EQ(nearest_key("model.num_layer"), "model.layers");
  EXPECT_EQ(nearest_key("optim.wd"), "optim.weight_decay");
  EXPECT_EQ(nearest_key("comm.timeout"), "comm.timeout_s");
  EXPECT_EQ(nearest_key("modle.hiden"), "model.hidden");
  EXPECT_EQ(nearest_key("model.warmup"), "optim.warmup");
  EXPECT_EQ(nearest_key("model.kangaroo"), std::nullopt);
  EXPECT_EQ(nearest_key(""), std::nullopt);
}

TEST(ConfigOverride, WinsOverTheFileAndTheLastOverAll) {
  const Overrides overrides = {"run.steps=1",          "optim.lr=3e-4",    "run.steps=2",
                               "optim.betas=[0, 0.5]", " mesh.tensor = 2", "model.tie=false"};
  const Config config = parse("[run]\nsteps = 9\nseed = 7", "gpt.toml", overrides);
  EXPECT_EQ(config.run.steps, 2);
  EXPECT_EQ(config.run.seed, 7);
  EXPECT_EQ(config.optim.lr, 3e-4);
  EXPECT_EQ(config.optim.betas, (std::vector<double>{0, 0.5}));
  EXPECT_EQ(config.mesh.tensor, 2);
  EXPECT_FALSE(config.model.tie);
}

TEST(ConfigOverride, TakesStringsWithAndWithoutQuotes) {
  for (const auto& [text, value] :
       std::initializer_list<std::pair<std::string, std::string>>{{"runs/a b", "runs/a b"},
                                                                  {"\"x\\ty\"", "x\ty"},
                                                                  {"'q'", "q"},
                                                                  {"7", "7"},
                                                                  {"2024-05-01", "2024-05-01"},
                                                                  {"a=b", "a=b"},
                                                                  {"true", "true"},
                                                                  {"[x", "[x"}})
    EXPECT_EQ(parse("", "a", Overrides{"run.dir=" + text}).run.dir, value);
  EXPECT_EQ(parse("data.path = 'x'", "a", Overrides{"data.path="}).data.path, "");
}

TEST(ConfigOverride, IsQuotedWhenItIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"optim.lr", "override 'optim.lr': there is no '='; an override is KEY=VALUE"},
      {"optim.learning_rate=3",
       "override 'optim.learning_rate=3': unknown key 'optim.learning_rate'; did you mean "
       "'optim.lr'?"},
      {"optin.lr=3", "override 'optin.lr=3': unknown key 'optin.lr'; did you mean 'optim.lr'?"},
      {"optim=3", "override 'optim=3': 'optim' is a section; an override sets one key of it"},
      {"=3", "override '=3': unknown key ''"},
      {"", "override '': there is no '='; an override is KEY=VALUE"},
      {"optim.lr=fast",
       "override 'optim.lr=fast': optim.lr = \"fast\" is a string; it must be a number"},
      {"run.steps=3\nrun.seed=4",
       "override 'run.steps=3?run.seed=4': run.steps = \"3\\nrun.seed=4\" is a string; it must be "
       "a "
       "whole number"},
      {"run.dir=a\xff", "override 'run.dir=a\xff': the value is not UTF-8 text"}};
  for (const auto& [text, message] : cases) EXPECT_EQ(refusal("", {text}), message);
}

TEST(ConfigOverride, ThatChangesNothingIsRefusedWithTheRemedy) {
  const std::string file = "[data]\nkind = 'markov'\n[mesh]\nreplica = 2";
  const std::pair<Overrides, const char*> cases[] = {
      {{"data.path=my.bin"},
       "override 'data.path=my.bin': data.path = \"my.bin\" has no effect while data.kind = "
       "\"markov\"; set data.kind=tokens, or leave it out"},
      {{"data.kind=tokens", "data.path=a", "data.valid=b"},
       "override 'data.valid=b': data.valid = \"b\" has no effect while eval.every = 0; set "
       "eval.every=100, or leave it out"},
      {{"pipeline.schedule=zb-v"},
       "override 'pipeline.schedule=zb-v': pipeline.schedule = \"zb-v\" has no effect while "
       "mesh.pipe = 1; set mesh.pipe=2, or leave it out"},
      {{"optim.momentum=0.5"},
       "override 'optim.momentum=0.5': optim.momentum = 0.5 has no effect while optim.kind = "
       "\"adamw\"; set optim.kind=sgd, or leave it out"},
      {{"compress.transfers=int8"},
       "override 'compress.transfers=int8': compress.transfers = \"int8\" has no effect while "
       "mesh.pipe = 1; set mesh.pipe=2, or leave it out"},
      {{"compress.gathers=fp16"},
       "override 'compress.gathers=fp16': compress.gathers = \"fp16\" has no effect while "
       "mesh.shard = 1; set mesh.shard=2, or leave it out"},
      {{"mesh.shard=2", "precision.compute=bfloat16", "compress.gathers=int8"},
       "override 'compress.gathers=int8': compress.gathers = \"int8\" has no effect while "
       "precision.compute = \"bfloat16\"; set precision.compute=float32, or leave it out"},
      {{"comm.backend=shm", "comm.rate_mbit=100"},
       "override 'comm.rate_mbit=100': comm.rate_mbit = 100.0 has no effect while comm.backend = "
       "\"shm\"; set comm.backend=tcp, or leave it out"}};
  for (const auto& [overrides, message] : cases) EXPECT_EQ(refusal(file, overrides), message);
  // What switches off a key of the file is no mistake, nor is the value that it has anyway.
  parse("data = {kind = 'tokens', path = 'x', valid = 'y'}\neval.every = 5", "a",
        Overrides{"data.kind=markov", "eval.every=0"});
  parse("pipeline.schedule = 'zb-v'\nmesh.pipe = 2", "a", Overrides{"mesh.pipe=1"});
  parse(file, "a", Overrides{"optim.momentum=0.9", "data.path="});
}

TEST(ConfigOverride, OfAPathAloneMeansAFileOfTokens) {
  EXPECT_EQ(parse("", "a", Overrides{"data.path=my.bin"}).data.kind, DataKind::Tokens);
  EXPECT_EQ(parse("data.path = 'my.bin'", "a").data.kind, DataKind::Tokens);
  EXPECT_EQ(parse("data = {kind = 'markov', path = 'my.bin'}", "a").data.kind, DataKind::Markov);
}

TEST(ConfigTable, OffersOnlyWhatIsBuilt) {
  EXPECT_EQ(error_of([&] { load("/dev/null", Overrides{"comm.backend=mpi"}); }),
            "comm.backend = \"mpi\" is not built yet; use one of \"auto\", \"shm\", \"tcp\", "
            "\"local\", \"nccl\"");
  EXPECT_EQ(list_keys().find("mpi"), std::string::npos);
  EXPECT_EQ(load("/dev/null", {}), parse("", "a"));
}

TEST(ConfigValidate, RefusesKeysThatDoNotFitEachOther) {
  const std::pair<const char*, const char*> cases[] = {
      {"model.hidden = 130", "gpt.toml: model.hidden = 130 is not a multiple of model.heads = 4"},
      {"model.kv_heads = 3", "gpt.toml: model.heads = 4 is not a multiple of model.kv_heads = 3"},
      {"precision = {compute = 'bfloat16', reduce = 'float16'}",
       "gpt.toml: precision.reduce = \"float16\" does not go with precision.compute = "
       "\"bfloat16\": "
       "use \"float32\" or \"bfloat16\""},
      {"precision = {compute = 'float64', reduce = 'bfloat16'}",
       "gpt.toml: precision.reduce = \"bfloat16\" does not go with precision.compute = "
       "\"float64\": "
       "use \"float64\", or leave it out"},
      {"model.kind = 'resnet'",
       "gpt.toml: model.kind = \"resnet\" chooses classes of images, and data.kind = \"markov\" "
       "has "
       "none; use \"idx\", \"cifar\" or \"images\""},
      {"model = {kind = 'resnet', depth = 34}",
       "gpt.toml: model.depth = 34; a resnet has 18 or 50 layers"},
      {"model = {kind = 'vit', patch = 5}",
       "gpt.toml: model.image = 32 is not a multiple of model.patch = 5"},
      {"model.kind = 'resnet'\ndata = {kind = 'cifar', path = 'x'}\nmemory.recompute = 'cheap'",
       "gpt.toml: memory.recompute = \"cheap\" saves nothing in a resnet: it has no attention, and "
       "its norms are one pass with their ReLU; use \"block\""},
      {"model.kind = 'moe-gpt'\nmodel.top_k = 9",
       "gpt.toml: model.top_k = 9 is more than model.experts = 8"},
      {"model.kind = 'moe-gpt'\nmesh.expert = 3",
       "gpt.toml: model.experts = 8 cannot be dealt evenly to mesh.expert = 3: use a divisor"},
      {"mesh.expert = 2",
       "gpt.toml: mesh.expert = 2 deals experts to ranks, and model.kind = \"gpt\" has none; use "
       "model.kind = \"moe-gpt\", or leave mesh.expert out"},
      {"model = {kind = 'moe-gpt', capacity = 0.03}",
       "gpt.toml: model.capacity = 0.03 would drop everything: an expert would take 0.96 of the "
       "128 "
       "tokens of a sequence; use at least 0.0312, or 0 for all"},
      {"model = {kind = 'moe-gpt', router = 'expert-choice'}",
       "gpt.toml: model.router = \"expert-choice\": each expert would choose among all tokens of a "
       "sequence, also later ones, so that a token's output would depend on tokens that a causal "
       "model must not see; use \"softmax\", \"normalised\", \"sigmoid-bias\" or \"grouped\""},
      {"model = {kind = 'moe-gpt', router = 'sigmoid-bias'}\nsync = {kind = 'stale', servers = 1}",
       "gpt.toml: sync.kind = \"stale\" and model.router = \"sigmoid-bias\" do not go together: "
       "biases "
       "move by the load of a whole step, and no worker knows what the others' tokens chose; use "
       "\"normalised\""},
      {"model = {kind = 'moe-gpt', router = 'sigmoid-bias'}\npipeline.schedule = 'pipedream'\n"
       "mesh.pipe = 2",
       "gpt.toml: model.router = \"sigmoid-bias\" and pipeline.schedule = \"pipedream\" do not go "
       "together: biases move by the load of a whole step, and steps overlap there; use "
       "\"normalised\", or \"1f1b\""},
      {"model = {kind = 'moe-gpt', experts = 1000000, expert_ffn = 1000000000, hidden = 4096}",
       "gpt.toml: model: layers 4 x hidden 4096 x ffn 1000000000 x 1000000 experts with vocab 256 "
       "and "
       "seq 128 are about 2e+19 parameters; at most 1e15 can be counted"},
      {"model = {kind = 'moe-gpt', router = 'grouped', router_groups = 3}",
       "gpt.toml: model.experts = 8 cannot be divided into router_groups = 3"},
      {"model = {kind = 'moe-gpt', router = 'grouped', router_groups = 4, top_k = 3}",
       "gpt.toml: model.top_k = 3 is more than the 2 experts of router_top_groups = 1 groups"},
      {"run.epochs = 2\nrun.steps = 200",
       "gpt.toml: run.epochs = 2 and run.steps = 200 both say how long to train; give one of them"},
      {"data.kind = 'text'", "gpt.toml: data.kind = \"text\" needs data.path, which is empty"},
      {"mesh.tensor = 5",
       "gpt.toml: mesh.tensor = 5 does not fit model.heads = 4: use at most 4, or a multiple of "
       "it"},
      {"mesh.tensor = 3\nmodel.kv_heads = 2",
       "gpt.toml: mesh.tensor = 3 does not fit model.kv_heads = 2: use at most 2, or a multiple of "
       "it"},
      {"mesh.context = 4\nmodel.seq = 7",
       "gpt.toml: mesh.context = 4 cuts a sequence in 8 pieces, a head and a tail for each rank, "
       "but "
       "model.seq = 7; use at most mesh.context=3"},
      {"mesh.context = 3\nmesh.tensor = 2\ncontext.kind = 'ulysses'",
       "gpt.toml: context.kind = \"ulysses\" deals the heads of a rank to mesh.context = 3, but "
       "model.heads = 4 over mesh.tensor = 2 are 2 on a rank; use context.kind = \"ring\""},
      {"mesh.context = 2\nmodel.kind = 'mlp'",
       "gpt.toml: mesh.context = 2 cuts sequences along their length, which model.kind = \"mlp\" "
       "cannot do; use \"gpt\" or \"llama\""},
      {"data = {documents = true}",
       "gpt.toml: data.documents = true needs samples of several documents, and one of data.kind = "
       "\"markov\" is a single one; use \"tokens\" or \"text\", or leave data.documents out"},
      {"data = {path = 'x', documents = true}",
       "gpt.toml: data.documents = true needs to know which token ends a document: set data.eod, "
       "or "
       "data.tokenizer"},
      {"data = {path = 'x', documents = true, eod = 256}",
       "gpt.toml: data.eod = 256 is not below model.vocab = 256"},
      {"mesh.shard = 0",
       "gpt.toml: mesh.replica and mesh.shard cannot both be 0, which means what is left of the "
       "world"},
      {"pipeline.balance = '3,,4'",
       "gpt.toml:1:20: pipeline.balance = \"3,,4\" is neither \"time\" nor \"params\" nor a list "
       "of "
       "layers such as \"3,5,5,3\""}};
  for (const auto& [text, message] : cases) EXPECT_EQ(refusal(text), message);
  parse("model.kind = 'mlp'\nmodel.hidden = 130\nmesh.tensor = 5",
        "heads are none of its business");
  parse("mesh.tensor = 3", "dealt as 2, 1, 1");
  parse("mesh.tensor = 8", "two ranks each");
  parse("pipeline.balance = '3,5'\nmesh = {shard = 0, replica = 1}", "fine");
}

TEST(ConfigValidate, HoldsAConfigMadeByHandToTheTable) {
  Config config = resolved({});
  validate(config);
  config.comm.timeout_s = 0;
  EXPECT_EQ(error_of([&] { validate(config); }),
            "comm.timeout_s = 0.0 is out of range; it must be more than 0 and at most 1000000000");
  config = resolved({});
  config.optim.betas.clear();
  EXPECT_EQ(error_of([&] { validate(config); }), "optim.betas = [] has 0 numbers; it must have 2");
}

}  // namespace
}  // namespace trireme::config
