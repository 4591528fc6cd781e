// Local updates that continue on another number of replicas, another cut or with another
// compression: what meetings have not sent yet is kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <sstream>

#include "support/backends.h"
#include "support/local_sgd.h"
#include "support/scratch.h"
#include "trireme/checkpoint/resume.h"
#include "trireme/checkpoint/saver.h"

namespace trireme::test::other_replicas {
namespace {

using config::SyncKind;
using precision::Training;

std::vector<int64_t> numbers_in(const std::string& text) {
  std::vector<int64_t> all;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) all.push_back(std::stoll(word));
  return all;
}

/// What compressed meetings have not sent yet, as weight x move, added up over all ranks in whole
/// parameters. Names tell the place:
/// replica.0/meeting/residual/MESH/rank.1/NAME@OFFSET:SHAPE:BEGIN.
void add_unsent(Weights& to, const train::Trainer& trainer) {
  static std::mutex mutex;
  const checkpoint::State state = trainer.state();
  const std::lock_guard lock(mutex);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const checkpoint::Item& item : state.items) shapes[item.piece.name] = item.piece.whole;
  const auto replica = static_cast<std::size_t>(trainer.replicas()->index());
  const auto& fragments = state.extra.at("replicas").at(replica).at("local").at("reducers").at(0);
  for (const checkpoint::Item& item : state.items) {
    const std::string& path = item.piece.name;
    const bool unsent = path.find("/meeting/unsent/") != path.npos;
    if (!unsent && path.find("/meeting/residual/") == path.npos) continue;
    if (path.find(".repeat/") != path.npos) continue;
    const auto begin = path.find('/', path.find("/rank.") + 1) + 1, at = path.rfind('@');
    const std::string name = path.substr(begin, at - begin), place = path.substr(at + 1);
    const auto shape = place.find(':'), first = place.rfind(':');
    at::Tensor& whole = to[name];
    if (!whole.defined()) whole = at::zeros(shapes.at(name), at::kDouble);
    const at::Tensor box =
        nn::box_of(whole, {numbers_in(place.substr(0, shape)),
                           numbers_in(place.substr(shape + 1, first - shape - 1))});
    const at::Tensor flat = box.reshape({-1}).clone();
    const std::size_t fragment = state.extra.at("sync").at("fragment_of").at(name);
    flat.narrow(0, std::stoll(place.substr(first + 1)), item.tensor.numel())
        .add_(item.tensor.reshape({-1}),
              unsent ? 1.0 : 1 / fragments.at(fragment).at("unit").get<double>());
    box.copy_(flat.view(box.sizes()));
  }
}

void expect_same_unsent(const Weights& saved, const Weights& loaded) {
  double most = 0;
  for (const auto& [name, whole] : saved) {
    const double size = whole.abs().max().item<double>();
    most = std::max(most, size);
    ASSERT_TRUE(loaded.contains(name)) << name;
    EXPECT_LE((whole - loaded.at(name)).abs().max().item<double>(), 1e-12 * size) << name;
  }
  EXPECT_GT(most, 0);
}

TEST(LocalUpdates, OtherReplicasKeepTheSumOfWhatMeetingsHaveNotSent) {
  using enum config::Compression;
  struct Case {
    Degrees degrees;
    int64_t every = 3, fragments = 1, inner_group = 1;
    config::Compression kind = TopK;
  };
  const auto config_of = [](const Case& c, config::Compression kind) {
    auto config = plain_sgd([&](auto& sync) {
      sync.kind = SyncKind::DiLoCo;
      sync.every = c.every;
      sync.fragments = c.fragments;
      sync.inner_group = c.inner_group;
    });
    config.batch.global = 12;
    config.compress.kind = kind;
    config.compress.ratio = 0.1;
    return config;
  };
  const std::vector<Case> from = {{.degrees = {.replica = 2, .tensor = 2}},
                                  {.degrees = {.replica = 2, .shard = 2}, .fragments = 2},
                                  {.degrees = {.replica = 4}, .inner_group = 2, .kind = Int8}};
  const std::vector<Case> to = {{.degrees = {.replica = 3}},
                                {.degrees = {.replica = 1, .tensor = 2}},
                                {.degrees = {.replica = 4}},
                                {.degrees = {.replica = 2, .shard = 2}, .every = 1},
                                {.degrees = {.pipe = 2, .replica = 2}, .fragments = 3}};
  for (const Case& before : from) {
    const auto kind = before.kind;
    const Scratch scratch;
    Weights saved;
    run_world(kThreads, before.degrees.world(), [&](const comm::Communicator& world) {
      Training run(config_of(before, kind), world, before.degrees);
      for (int64_t step = 1; step <= 4; ++step) run.step(step);
      add_unsent(saved, run.trainer);
      checkpoint::Saver saver(scratch / "run", run.mesh, 1);
      saver.save(4, run.trainer.state());
      EXPECT_EQ(saver.wait(), std::nullopt);
    });
    for (const Case& after : to) {
      SCOPED_TRACE(fmt::format("{} from {} to {}", to_string(kind), to_string(before.degrees),
                               to_string(after.degrees)));
      Weights loaded;
      run_world(kThreads, after.degrees.world(), [&](const comm::Communicator& world) {
        Training run(config_of(after, kind), world, after.degrees);
        checkpoint::load_newest(scratch / "run", world,
                                [&, own = run.trainer.own_state()](format::Checkpoint& one) {
                                  run.trainer.load(one, own);
                                });
        EXPECT_THAT(run.trainer.restore(), ::testing::HasSubstr("not sent yet is kept"));
        add_unsent(loaded, run.trainer);
        for (int64_t step = 5; step <= 6; ++step) run.step(step);
        run.trainer.check_same();
      });
      expect_same_unsent(saved, loaded);
    }
  }
}

TEST(LocalUpdates, OtherCompressionKeepsTheSumOfWhatMeetingsHaveNotSent) {
  using enum config::Compression;
  const Scratch scratch;
  const auto config_of = [](config::Compression kind, int64_t every) {
    auto config = plain_sgd([&](auto& sync) {
      sync.kind = SyncKind::Average;
      sync.every = every;
    });
    config.batch.global = 12;
    config.compress.kind = kind;
    config.compress.ratio = 0.1;
    return config;
  };
  /// What was not sent, after loading `from` and `steps` steps; saved to `to` if it has a name.
  const auto unsent_after = [&](const config::Config& config, int replicas, const std::string& from,
                                const std::string& to, int64_t steps) {
    Weights all;
    run_world(kThreads, replicas, [&](const comm::Communicator& world) {
      Training run(config, world, {.replica = replicas});
      if (!from.empty()) {
        checkpoint::load_newest(scratch / from, world,
                                [&, own = run.trainer.own_state()](format::Checkpoint& one) {
                                  run.trainer.load(one, own);
                                });
        run.trainer.restore();
      }
      for (int64_t step = from.empty() ? 1 : 5; step <= 4 + steps; ++step) run.step(step);
      add_unsent(all, run.trainer);
      if (to.empty()) return;
      checkpoint::Saver saver(scratch / to, run.mesh, 1);
      saver.save(4 + steps, run.trainer.state());
      EXPECT_EQ(saver.wait(), std::nullopt);
    });
    return all;
  };
  const Weights saved = unsent_after(config_of(TopK, 2), 2, "", "topk", 0);
  expect_same_unsent(saved, unsent_after(config_of(Int8, 2), 2, "topk", "", 0));
  // PowerSGD keeps none for gradients with one dim: these wait, too.
  expect_same_unsent(saved, unsent_after(config_of(PowerSgd, 2), 2, "topk", "", 0));
  // Without compression it waits for the next meeting, and may be saved until then.
  expect_same_unsent(saved, unsent_after(config_of(None, 4), 2, "topk", "none", 1));
  for (const int replicas : {2, 3})
    for (const auto kind : {None, TopK}) {
      SCOPED_TRACE(fmt::format("{} replicas, {}", replicas, to_string(kind)));
      expect_same_unsent(saved, unsent_after(config_of(kind, 4), replicas, "none", "", 0));
    }
  // `auto` has not chosen yet: the first meeting sends everything as it is, but not residuals.
  expect_same_unsent(saved, unsent_after(config_of(Auto, 1), 3, "topk", "", 1));
  // The meeting of a run without compression sends them.
  for (const auto& [name, rest] : unsent_after(config_of(None, 1), 3, "topk", "", 1))
    EXPECT_EQ(rest.abs().max().item<double>(), 0) << name;
}

TEST(LocalUpdates, OtherReplicasKeepACountThatAllHaveAlike) {
  const Scratch scratch;
  const auto config = plain_sgd([](auto& sync) { sync.kind = SyncKind::Average; });
  // 7 / 3 + 7 / 3 + 7 / 3 is less than 7 in floating point.
  for (const auto& [replicas, seen] : {std::pair{3, 7}, std::pair{2, 0}})
    run_world(kThreads, replicas, [&](const comm::Communicator& world) {
      Training run(config, world, {.replica = replicas});
      auto& count = run.trainer.attached().modules().front()->register_buffer(
          "seen", at::full({}, seen, at::kLong));
      if (seen > 0) {
        checkpoint::Saver saver(scratch / "run", run.mesh, 1);
        saver.save(1, run.trainer.state());
        EXPECT_EQ(saver.wait(), std::nullopt);
        return;
      }
      checkpoint::load_newest(scratch / "run", world,
                              [&, own = run.trainer.own_state()](format::Checkpoint& one) {
                                run.trainer.load(one, own);
                              });
      EXPECT_EQ(count.item<int64_t>(), 7);
    });
}

}  // namespace
}  // namespace trireme::test::other_replicas
