// Will this user click on this item, on this page? A factorisation machine (Rendle 2010) whose
// table has ten million rows, which no worker ever has: they lie on servers, a batch pulls the few
// thousand rows that it names, and pushes their gradients.
//
//   trireme run --servers 4 --workers 2 build/bin/14_click_prediction
//   build/bin/14_click_prediction                  all of it in one process
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <random>

#include "trireme/trireme.h"

using namespace trireme;
using torch::Tensor;

constexpr int64_t kFields = 3, kKeysOfField = 3'400'000, kBatch = 2048, kHeldOut = 20'000;
constexpr int64_t kRow = 16;  // the weight of a key, and its 15 factors
constexpr uint64_t kBatches = 400;
constexpr int kEvery = 40;  // batches of a worker between two looks at the held-out clicks

struct Clicks {
  Tensor keys;     // [n, fields] int64: the user, the item, the page
  Tensor chances;  // [n] float: of a click, which nobody knows
  Tensor clicked;  // [n] float: 0 or 1
};

/// The truth that is to be found: a number in [-1, 1) for each key and place (splitmix64).
double truth(int64_t key, uint64_t place) {
  uint64_t word = (static_cast<uint64_t>(key) * 8 + place + 1) * 0x9E3779B97F4A7C15;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
  return static_cast<double>((word ^ (word >> 31)) >> 11) * 0x1p-52 - 1;
}

/// How willing each key is by itself, and how well each two of them suit each other.
double true_logit(const int64_t* keys) {
  double logit = -0.5;
  for (int64_t a = 0; a < kFields; ++a) {
    logit += 1.5 * truth(keys[a], 0);
    for (int64_t b = 0; b < a; ++b)
      for (uint64_t place = 1; place <= 2; ++place)
        logit += 2 * truth(keys[a], place) * truth(keys[b], place);
  }
  return logit;
}

/// Always the same n clicks of a seed. Keys follow Zipf's law: number k comes as often as 1 / k.
Clicks generate(uint64_t seed, int64_t n) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform;
  Clicks clicks{torch::empty({n, kFields}, torch::kLong), torch::empty({n}), torch::empty({n})};
  auto* keys = clicks.keys.data_ptr<int64_t>();
  for (int64_t i = 0; i < n; ++i, keys += kFields) {
    for (int64_t field = 0; field < kFields; ++field)
      keys[field] =
          field * kKeysOfField + static_cast<int64_t>(std::pow(kKeysOfField, uniform(random))) - 1;
    const double chance = 1 / (1 + std::exp(-true_logit(keys)));
    clicks.chances.data_ptr<float>()[i] = static_cast<float>(chance);
    clicks.clicked.data_ptr<float>()[i] = uniform(random) < chance ? 1 : 0;
  }
  return clicks;
}

template <class T>
std::span<T> span_of(const Tensor& tensor) {
  return {tensor.data_ptr<T>(), static_cast<size_t>(tensor.numel())};
}

/// Rows [n, fields, 16] -> logits [n]: the weights, and for each two keys the product of their
/// factors. sum_{a<b} v_a v_b = ((sum v)^2 - sum v^2) / 2.
Tensor logits_of(const Tensor& rows) {
  const Tensor weights = rows.select(2, 0), factors = rows.narrow(2, 1, kRow - 1);
  const Tensor pairs = factors.sum(1).square() - factors.square().sum(1);
  return weights.sum(1) + pairs.sum(1) / 2;
}

/// The chance that a click has a higher logit than something that was not clicked.
double area_under_curve(const Tensor& logits, const Tensor& clicked) {
  const Tensor sorted = clicked.index_select(0, logits.argsort()).to(torch::kDouble);
  const double positives = sorted.sum().item<double>();
  const double negatives = static_cast<double>(sorted.numel()) - positives;
  const double below = ((1 - sorted).cumsum(0) * sorted).sum().item<double>();
  return below / (positives * negatives);
}

int work(ps::Worker& worker) {
  torch::set_num_threads(1);
  const ps::Table table = worker.table("keys");
  const Clicks held_out = generate(/*seed=*/1, kHeldOut);
  const auto evaluate = [&](const ps::TrainingStep& step) {
    const Tensor rows = torch::empty({kHeldOut, kFields, kRow});
    table.pull(step, span_of<int64_t>(held_out.keys), span_of<float>(rows)).wait();
    return area_under_curve(logits_of(rows), held_out.clicked);
  };

  double first_auc = 0;
  bool reports = false;  // one of the workers does, the one that begins
  int steps = 0;
  const ps::TrainingStep& end = worker.train([&](ps::TrainingStep& step) {
    reports = reports || step.batch() == 0;
    if (reports && steps % kEvery == 0) {
      const double auc = evaluate(step);
      if (step.batch() == 0) first_auc = auc;
      std::printf("batch %3llu  AUC %.3f\n", static_cast<unsigned long long>(step.batch()), auc);
    }
    ++steps;
    const Clicks clicks = generate(/*seed=*/2 + step.batch(), kBatch);
    const ps::Keys keys(span_of<int64_t>(clicks.keys));  // popular ones come often, and travel once
    const Tensor rows = torch::empty({kBatch, kFields, kRow});
    table.pull(step, keys, span_of<float>(rows)).wait();
    rows.requires_grad_();
    torch::binary_cross_entropy_with_logits(logits_of(rows), clicks.clicked, {}, {},
                                            at::Reduction::Sum)
        .backward();
    step.weight = kBatch;  // the loss is a sum over so many clicks
    table.push(step, keys, span_of<float>(rows.grad()));
  });

  if (!reports) return 0;
  const double last_auc = evaluate(end);
  std::printf("AUC %.3f -> %.3f on clicks that nobody trained on; the truth has %.3f\n", first_auc,
              last_auc, area_under_curve(held_out.chances, held_out.clicked));
  std::printf("worker %u sent %.0f MB in %d steps; the whole table would have %.0f MB\n",
              worker.index(), static_cast<double>(worker.client().sent_bytes()) / 1e6, steps,
              1e-6 * kFields * kKeysOfField * kRow * sizeof(float));
  return last_auc >= first_auc + 0.1 ? 0 : 1;
}

int main() {
  return guard([] {
    ps::JobConfig job{.name = "clicks", .seed = 1, .servers = 4};
    job.data = {.batches_per_epoch = kBatches, .steps_per_task = 4};
    job.tables = {{.name = "keys",
                   .kind = ps::TableKind::Sparse,
                   .elems = kRow,
                   .consistency = ps::Consistency::Stale,
                   .tau = 4,
                   .rule = ps::make_adagrad({.lr = 0.1}),
                   .init_scale = 0.05}};
    const auto worker = ps::join(job);
    return worker ? work(*worker) : 0;  // no worker: this was the manager, or a server
  });
}
