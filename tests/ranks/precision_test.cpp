// Sixteen bits: every mesh gives the numbers of one rank in the same precision, with the bytes that
// are promised; checkpoints go from any precision to any other.
#include <gmock/gmock.h>

#include <torch/torch.h>

#include <cmath>

#include "support/scratch.h"
#include "support/tiny_training.h"
#include "trireme/checkpoint/resume.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/core/error.h"
#include "trireme/core/trace.h"
#include "trireme/format/folder.h"
#include "trireme/parallel/data_parallel.h"

namespace trireme::test::precision {
namespace {

using comm::Communicator;
using config::Dtype;
using config::ShardedState;
using ::testing::HasSubstr;

std::vector<MeshCase> all_meshes() {
  const auto level = [](ShardedState what) {
    return [what](config::Config& config) { config.memory.shard = what; };
  };
  const auto schedule = [](const char* name) {
    return [name](config::Config& config) { config.pipeline.schedule = name; };
  };
  return {
      {{.replica = 2}},
      {{.replica = 5}, [](auto& config) { config.batch.global = 4; }},  // one has no rows
      {{.shard = 2}, level(ShardedState::Optimizer)},
      {{.shard = 2}, level(ShardedState::Gradients)},
      {{.shard = 2}, level(ShardedState::Parameters)},
      {{.tensor = 2}},
      {{.tensor = 4}},  // each kv head on two ranks
      {{.tensor = 2}, [](auto& config) { config.tensor.sequence = false; }},
      {{.pipe = 2}, schedule("1f1b")},
      {{.pipe = 2}, schedule("gpipe")},
      {{.pipe = 2}, schedule("zb-h1")},
      {{.replica = 2}, [](auto& config) { config.memory.recompute = config::Recompute::Block; }},
      {{.tensor = 2}, [](auto& config) { config.memory.recompute = config::Recompute::Cheap; }},
      {{.pipe = 2, .shard = 2, .tensor = 2}, [](auto& config) {
         config.memory.recompute = config::Recompute::Selective;
         config.model.dropout = 0.1;
       }}};
}

void expect_proved(Dtype dtype, const std::function<void(config::Config&)>& more = {}) {
  for (const MeshCase& setup : all_meshes()) {
    run_world(kThreads, setup.degrees.world(), [&](const Communicator& world) {
      config::Config config = gpt_config(dtype, setup);
      if (more) more(config);
      const auto report = prove_model(world, config, setup.degrees, {.steps = 2, .dtype = dtype});
      EXPECT_TRUE(report.same()) << to_string(setup.degrees) << "\n" << report.text();
      EXPECT_EQ(report.not_resumed, "");
    });
  }
}

TEST(SixteenBits, AreProvedOnEveryMesh) {
  expect_proved(Dtype::BFloat16);
  expect_proved(Dtype::Float16);
}

TEST(SixteenBits, AreProvedForALlama) {
  for (const Dtype dtype : {Dtype::BFloat16, Dtype::Float16})
    expect_proved(dtype, [](auto& config) { config.model.kind = "llama"; });
}

TEST(SixteenBits, AreProvedOnTheWireWithoutMastersAndWithSomeParametersKept) {
  expect_proved(Dtype::BFloat16, [](auto& config) { config.precision.reduce = Dtype::BFloat16; });
  expect_proved(Dtype::BFloat16, [](auto& config) {
    config.precision.master = config::Master::None;
    config.precision.keep = {"*.ln_*", "*.bias"};
  });
}

TEST(SixteenBits, OnTheWireOnlyAreAllowedTheirRounding) {
  for (const Dtype compute : {Dtype::Float32, Dtype::Float16}) {
    run_world(kThreads, 4, [&](const Communicator& world) {
      config::Config config = gpt_config(compute, {});
      config.precision.reduce = Dtype::BFloat16;
      const auto report = prove_model(world, config, {.replica = 4}, {.dtype = compute});
      EXPECT_TRUE(report.same()) << report.text();
      config.precision.reduce = Dtype::Float16;
      config.precision.compute = Dtype::Float16;
      EXPECT_THROW(prove_model(world, config, {.replica = 4}, {.dtype = Dtype::BFloat16}),
                   ConfigError);
    });
  }
}

TEST(SixteenBits, KeepNoPatternThatMatchesNothing) {
  run_world(kThreads, 1, [&](const Communicator& world) {
    config::Config config = gpt_config(Dtype::BFloat16, {});
    config.precision.keep = {"*.norm*"};
    try {
      Training run(config, world, {});
      ADD_FAILURE() << "it was taken";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("\"*.norm*\" matches no parameter; there are wte.weight"));
    }
  });
}

TEST(SixteenBits, AreProvedWithWhateverIsKept) {
  for (const std::vector<std::string>& keep :
       {std::vector<std::string>{"*.bias"}, {"head.weight"}, {"embed*", "layers.1*"}}) {
    run_world(kThreads, 2, [&](const Communicator& world) {
      config::Config config = gpt_config(Dtype::BFloat16, {});
      config.model.kind = "mlp";
      config.precision.keep = keep;
      for (const Degrees& degrees : {Degrees{.tensor = 2}, Degrees{.shard = 2}}) {
        const auto report =
            prove_model(world, config, degrees, {.steps = 2, .dtype = Dtype::BFloat16});
        EXPECT_TRUE(report.same()) << report.text();
      }
      // A table of float32 does not make the layers behind it compute in float32.
      config.precision.keep = {"wte*", "wpe*"};
      config.model.kind = "gpt";
      Training run(config, world, {.replica = 2});
      at::ScalarType seen = at::kByte;
      run.trainer.model().apply([&](torch::nn::Module& module) {
        auto* layer = dynamic_cast<nn::LayerImpl*>(&module);
        if (layer != nullptr && layer->full_name() == "h.0")
          layer->around(nn::Seam::Profile, [&](nn::Flow in, const nn::LayerImpl::Call& inner) {
            seen = in.x().scalar_type();
            return inner(std::move(in));
          });
      });
      run.step(1);
      EXPECT_EQ(seen, at::kBFloat16);
    });
  }
}

TEST(SixteenBits, HideNoPlantedMistake) {
  using verify::Mistake;
  using verify::MistakeKind;
  const std::pair<Mistake, MistakeKind> kinds[] = {
      {Mistake::Average, MistakeKind::Factor},    {Mistake::Reduce, MistakeKind::Partial},
      {Mistake::Order, MistakeKind::Permutation}, {Mistake::Stale, MistakeKind::Stale},
      {Mistake::Data, MistakeKind::Data},         {Mistake::Dropout, MistakeKind::Dropout}};
  for (const Dtype dtype : {Dtype::BFloat16, Dtype::Float16}) {
    for (const Degrees& degrees : {Degrees{.replica = 2}, Degrees{.tensor = 2}}) {
      for (const auto& [mistake, kind] : kinds) {
        run_world(kThreads, degrees.world(), [&](const Communicator& world) {
          config::Config config = gpt_config(dtype, {});
          config.model.dropout = 0.2;
          const auto report =
              prove_model(world, config, degrees, {.steps = 2, .plant = mistake, .dtype = dtype});
          ASSERT_FALSE(report.same()) << to_string(kind);
          EXPECT_EQ(to_string(report.first->diagnosis.kind), to_string(kind)) << report.text();
        });
      }
    }
  }
}

TEST(SixteenBits, KeepMastersAndGradientsInFloat32) {
  for (const auto master : {config::Master::Float32, config::Master::None}) {
    const bool none = master == config::Master::None;
    run_world(kThreads, 4, [&](const Communicator& world) {
      config::Config config = gpt_config(Dtype::BFloat16, {});
      config.precision.master = master;
      config.precision.keep = {"*ln_*"};
      Training run(config, world, {.shard = 4});
      run.step(1);
      int64_t elements = 0, bytes = 0;
      for (const auto& shard : run.trainer.shards()) {
        const bool kept = shard.name.find("ln_") != std::string::npos;
        EXPECT_EQ(shard.weight.scalar_type(), kept ? at::kFloat : at::kBFloat16) << shard.name;
        EXPECT_EQ(shard.master.scalar_type(), kept || !none ? at::kFloat : at::kBFloat16);
        EXPECT_EQ(shard.gradient().scalar_type(), at::kFloat) << shard.name;
        EXPECT_TRUE(shard.weight.equal(shard.master.to(shard.weight.scalar_type())));
        EXPECT_EQ(shard.weight.is_same(shard.master), kept || none);
        if (kept) continue;
        elements += shard.master.numel();
        bytes += static_cast<int64_t>(shard.weight.nbytes() + shard.gradient().nbytes());
        if (!none) bytes += static_cast<int64_t>(shard.master.nbytes());
      }
      for (const checkpoint::Item& item : run.trainer.state().items)
        if (item.piece.name.starts_with("optim/") &&
            item.piece.name.find("ln_") == std::string::npos) {
          EXPECT_EQ(item.tensor.scalar_type(), at::kFloat) << item.piece.name;
          bytes += static_cast<int64_t>(item.tensor.nbytes());
        }
      EXPECT_EQ(bytes, elements * (none ? 14 : 18)) << "weight, master, two moments, gradient";
    });
  }
}

/// How many bytes of a kind of operation a trace has for block 1, by the shapes in its text. (Of
/// the first units the next step may have gathered some already.)
int64_t bytes_in(const std::string& trace, const std::string& kind, const std::string& dtype,
                 int64_t item) {
  std::istringstream lines(trace);
  int64_t bytes = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("\"ph\":\"b\"") == line.npos) continue;
    const auto at = line.find(kind + " 'h.1'"), begin = line.find('[', at),
               end = line.find("] " + dtype, at);
    if (at == line.npos || end == line.npos) continue;
    int64_t numel = 1;
    std::istringstream dims(line.substr(begin + 1, end - begin - 1));
    for (std::string dim; std::getline(dims, dim, ',');) numel *= std::stoll(dim);
    bytes += numel * item;
  }
  return bytes;
}

TEST(SixteenBits, HalveTheBytesOfGathersAndOfReductionsOnRequest) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    const auto traced = [&](Dtype compute, Dtype reduce) {
      config::Config config = gpt_config(compute, {});
      config.precision.reduce = reduce;
      Training run(config, world, {.shard = 2});
      run.step(1);
      const auto trace = std::make_shared<core::Trace>(world.rank());
      world.set_trace(trace);
      run.step(2);
      world.set_trace(nullptr);
      return trace->take();
    };
    const std::string wide = traced(Dtype::Float32, Dtype::Float32),
                      mixed = traced(Dtype::BFloat16, Dtype::Float32),
                      narrow = traced(Dtype::BFloat16, Dtype::BFloat16);
    const int64_t gathered = bytes_in(wide, "all_gather", "float32", 4);
    EXPECT_GT(gathered, 0);
    EXPECT_EQ(2 * bytes_in(mixed, "all_gather", "bfloat16", 2), gathered);
    EXPECT_EQ(bytes_in(mixed, "all_gather", "float32", 4), 0);
    const int64_t reduced = bytes_in(wide, "reduce_scatter", "float32", 4);
    EXPECT_GT(reduced, 0);
    EXPECT_EQ(bytes_in(mixed, "reduce_scatter", "float32", 4), reduced);
    EXPECT_EQ(2 * bytes_in(narrow, "reduce_scatter", "bfloat16", 2), reduced);
  });
}

TEST(SixteenBits, MoveBetweenPrecisionsAndMeshes) {
  const Scratch scratch;
  struct Stop {
    Degrees degrees;
    Dtype compute;
  };
  const Stop stops[] = {{{.replica = 2}, Dtype::Float32}, {{.shard = 2}, Dtype::BFloat16},
                        {{.tensor = 2}, Dtype::Float16},  {{.pipe = 2}, Dtype::BFloat16},
                        {{.replica = 2}, Dtype::Float16}, {{.shard = 2}, Dtype::Float32}};
  // From stop to stop: load, save, and every bit is still there. At the end all have trained on.
  std::map<std::string, at::Tensor> first;
  for (std::size_t i = 0; i < std::size(stops); ++i) {
    const auto& [degrees, compute] = stops[i];
    SCOPED_TRACE(to_string(degrees) + " " + std::string(to_string(compute)));
    run_world(kThreads, 2, [&](const Communicator& world) {
      Training run(gpt_config(compute, {}), world, degrees);
      if (i == 0) {
        run.step(1);
        run.step(2);
      } else {
        const std::string from = scratch / std::to_string(i - 1);
        format::Checkpoint saved(from + "/" + format::step_name(2));
        run.trainer.load(saved, run.trainer.own_state());
        world.barrier();
        run.trainer.restore();
        EXPECT_EQ(run.trainer.state().extra.at("update").at("updates"), 2);
      }
      checkpoint::Saver saver(scratch / std::to_string(i), run.mesh, 1);
      saver.save(2, run.trainer.state());
      ASSERT_EQ(saver.wait(), std::nullopt);
      const auto result = run.step(3);
      EXPECT_FALSE(result.skipped);
      EXPECT_LT(result.loss, 4);
      if (world.rank() != 0) return;
      format::Checkpoint saved((scratch / std::to_string(i)) + "/" + format::step_name(2));
      for (const auto& [name, info] : saved.index().tensors) {
        EXPECT_EQ(info.dtype, "F32") << name;
        Piece piece{.name = name, .whole = info.shape, .offset = {}, .shape = info.shape};
        piece.offset.assign(info.shape.size(), 0);
        piece.count = Box{{}, info.shape}.numel();
        at::Tensor values = torch::empty({piece.count});
        saved.read(piece, "F32", values.data_ptr());
        if (i == 0)
          first[name] = values;
        else
          EXPECT_TRUE(values.equal(first.at(name))) << name;
      }
    });
  }
  EXPECT_GT(first.size(), 30u);
}

TEST(SixteenBits, WithoutMastersMoveToFloat32AndBack) {
  const Scratch scratch;
  run_world(kThreads, 2, [&](const Communicator& world) {
    config::Config none = gpt_config(Dtype::BFloat16, {});
    none.precision.master = config::Master::None;
    const auto hand_on = [&](Training& from, const char* name, Training& to) {
      checkpoint::Saver saver(scratch / name, from.mesh, 1);
      saver.save(2, from.trainer.state());
      ASSERT_EQ(saver.wait(), std::nullopt);
      world.barrier();
      format::Checkpoint saved((scratch / name) + "/" + format::step_name(2));
      to.trainer.load(saved, to.trainer.own_state());
      world.barrier();
      to.trainer.restore();
    };
    Training first(none, world, {.replica = 2}),
        second(gpt_config(Dtype::Float32, {}), world, {.tensor = 2}),
        third(none, world, {.replica = 2});
    first.step(1);
    first.step(2);
    hand_on(first, "a", second);
    hand_on(second, "b", third);
    EXPECT_TRUE(same_bits(first.state(), third.state())) << "float32 holds every bfloat16";
    // The random bits of an update are those of its number: the two go on alike.
    EXPECT_EQ(first.step(3).loss, third.step(3).loss);
    EXPECT_TRUE(same_bits(first.state(), third.state()));
  });
}

TEST(SixteenBits, ServeAnOwnLoop) {
  run_world(kThreads, 2, [&](const Communicator& world) {
    const auto train = [&](Precision precision) {
      torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Tanh(),
                                torch::nn::Linear(8, 1));
      {
        const at::NoGradGuard guard;  // ranks are threads: they would share a random generator
        for (at::Tensor& one : net->parameters())
          one.copy_(torch::sin(torch::arange(one.numel(), torch::kFloat)).view(one.sizes()) / 2);
      }
      const bool half = precision.dtypes.has_value();
      parallel::DataParallel replicas(*net, world, {.precision = std::move(precision)});
      std::vector<at::Tensor> masters;
      for (const auto& shard : replicas.shards()) masters.push_back(shard.master);
      torch::optim::SGD optimizer(masters, torch::optim::SGDOptions(0.1));
      double loss = 0;
      for (int step = 0; step < 40; ++step) {
        const auto x = torch::sin(torch::arange(16) + step + world.rank()).view({4, 4});
        const auto y = net->forward(half ? x.to(torch::kBFloat16) : x);
        replicas.backward({(y.to(torch::kFloat) - x.sum(1, true)).pow(2).sum(), 4});
        const auto totals = replicas.finish();
        optimizer.step();
        replicas.updated();
        loss = totals.loss / totals.weight;
      }
      for (const auto& shard : replicas.shards())
        EXPECT_TRUE(shard.weight.equal(shard.master.to(shard.weight.scalar_type())));
      return loss;
    };
    using core::DType;
    const double mixed = train(
                     {.dtypes = ParameterDtypes{DType::BFloat16, DType::Float32, DType::Float32}}),
                 wide = train({});
    EXPECT_NEAR(mixed / wide, 1, 0.05);
  });
}

}  // namespace
}  // namespace trireme::test::precision
