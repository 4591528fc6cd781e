#include "trireme/infer/measure.h"

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/nn/parameters.h"

namespace trireme::infer {

namespace {

/// Sums over targets, as one tensor that ranks can add up: {loss, targets, correct, samples}.
class Sums {
 public:
  explicit Sums(int64_t classes)
      : numbers_(at::zeros({4}, at::kDouble)),
        confusions_(at::zeros({classes, classes}, at::kDouble)) {}

  /// logits [n, classes], targets [n].
  void add(const at::Tensor& logits, const at::Tensor& targets) {
    const at::Tensor counts = targets >= 0;
    const at::Tensor wanted = targets.clamp_min(0);
    const at::Tensor likelihoods =
        at::log_softmax(logits.to(at::promote_types(logits.scalar_type(), at::kFloat)), -1);
    const at::Tensor said = logits.argmax(-1);
    const at::Tensor loss =
        likelihoods.gather(-1, wanted.unsqueeze(-1)).squeeze(-1).to(at::kDouble);
    numbers_ +=
        at::stack({-loss.masked_fill(counts.logical_not(), 0).sum(), counts.sum().to(at::kDouble),
                   said.eq(targets).sum().to(at::kDouble), at::zeros({}, loss.options())})
            .cpu();
    const int64_t classes = confusions_.size(0);
    if (classes == 0) return;
    const at::Tensor cells = (wanted * classes + said).masked_select(counts).cpu();
    confusions_ += at::bincount(cells, {}, classes * classes).view({classes, classes});
  }

  void add_samples(int64_t count) { numbers_[3] += count; }

  Measured over(const comm::Communicator& ranks) {
    ranks.all_reduce(numbers_).wait();
    if (confusions_.numel() > 0) ranks.all_reduce(confusions_).wait();
    const auto* numbers = numbers_.const_data_ptr<double>();
    return {.loss_sum = numbers[0],
            .targets = static_cast<int64_t>(numbers[1]),
            .correct = static_cast<int64_t>(numbers[2]),
            .samples = static_cast<int64_t>(numbers[3]),
            .confusions = confusions_.to(at::kLong)};
  }

 private:
  at::Tensor numbers_, confusions_;
};

/// The head over what comes before it, a few positions at a time: of a large vocabulary all logits
/// of a micro-batch would take gigabytes.
void add_logits(const nn::Link& head, const nn::Flow& before, const at::Tensor& targets,
                Sums& sums) {
  constexpr int64_t kMostPositions = 512;
  if (targets.dim() < 2) return sums.add(head.forward(before).x(), targets);
  for (int64_t at = 0; at < targets.size(1); at += kMostPositions) {
    const int64_t count = std::min(kMostPositions, targets.size(1) - at);
    const at::Tensor logits =
        head.forward(before.with(before.x().narrow(1, at, count).contiguous())).x();
    sums.add(logits.flatten(0, 1), targets.narrow(1, at, count).flatten());
  }
}

}  // namespace

Measured measure(nn::ModelImpl& model, const data::Dataset& dataset, const Mesh& mesh,
                 const MeasureOptions& options) {
  const at::NoGradGuard guard;
  const nn::Chain chain = model.chain();
  const int64_t all =
      options.samples > 0 ? std::min(options.samples, dataset.size()) : dataset.size();
  if (chain.links.empty() || all == 0)
    throw ConfigError(all == 0 ? "there is no sample to measure the model on"
                               : "this model cannot be measured: it has no head");
  const auto dtype = nn::parameters_of(model).front().tensor.scalar_type();
  const Range mine = even_range(all, mesh.samples().size(), mesh.samples().rank());
  Sums sums(options.classes);
  for (int64_t begin = 0; begin < mine.count; begin += options.rows) {
    const int64_t end = std::min(mine.count, begin + options.rows);
    std::vector<at::Tensor> inputs, targets, documents;
    for (int64_t i = begin; i < end; ++i) {
      data::Sample sample = dataset.get(mine.begin + i);
      inputs.push_back(std::move(sample.input));
      targets.push_back(std::move(sample.target));
      if (sample.documents.defined()) documents.push_back(std::move(sample.documents));
    }
    auto where = std::make_shared<nn::Where>();
    if (!documents.empty()) where->documents = at::stack(documents).to(mesh.device());
    const at::Tensor x = at::stack(inputs);
    nn::Flow flow(x.to(mesh.device(), x.is_floating_point() ? dtype : x.scalar_type()),
                  std::move(where));
    for (const nn::Link& link : chain.links) flow = link.forward(std::move(flow));
    add_logits(chain.head, flow, at::stack(targets).to(mesh.device()), sums);
    sums.add_samples(end - begin);
  }
  return sums.over(mesh.samples());
}

}  // namespace trireme::infer
