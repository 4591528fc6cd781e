#include "trireme/parallel/attached_module.h"

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/nn/batch_statistics.h"
#include "trireme/nn/router.h"
#include "trireme/parallel/precision.h"
#include "trireme/parallel/replicas.h"

namespace trireme::parallel {

AttachedModule::AttachedModule(torch::nn::Module& module, const Mesh& mesh,
                               std::shared_ptr<Reducer> reducer, Precision precision)
    : module_(module), mesh_(mesh), reducer_(std::move(reducer)), precision_(std::move(precision)) {
  nn::attach_batch_norms(module, mesh_);
  for (nn::RouterImpl* router : nn::routers_of(module)) router->take_sums();  // of earlier calls
  if (!precision_.dtypes) return;
  module.apply([&](torch::nn::Module& one) {
    if (auto* layer = dynamic_cast<nn::LayerImpl*>(&one))
      layer->set_compute_dtype(scalar_type_of(precision_.dtypes->compute));
  });
}

void LossTotals::add(const nn::Loss& loss) {
  const at::NoGradGuard guard;
  const auto more = [&](at::Tensor& to, const at::Tensor& one) {
    // A number of the host becomes one on the GPU without a copy, which would have to wait.
    const auto there = at::TensorOptions().dtype(at::kDouble).device(loss.sum.device());
    const at::Tensor number = one.is_cpu() && !loss.sum.is_cpu()
                                  ? at::full({}, one.item<double>(), there)
                                  : one.detach().to(there, /*non_blocking=*/false, /*copy=*/true);
    to = to.defined() ? to + number : number;
  };
  more(sum, loss.sum);
  more(weight, loss.weight);
  if (loss.correct.defined()) more(correct, loss.correct);
}

void AttachedModule::backward(const nn::Loss& loss, Micro micro, const at::Tensor& scale) {
  check(loss);
  if (reports_loss(mesh_.coord())) loss_.add(loss);
  collect(micro, [&] {
    // A rank without rows may have a loss that depends on nothing.
    if (loss.sum.requires_grad()) loss.sum.backward(seed_of(loss, scale));
  });
}

void AttachedModule::discard() {
  if (gradients().discard()) reducer_->drop_step();
  loss_ = {};
  for (const auto& one : nn::batch_statistics_of(module_)) one->discard_mini_batch();
  for (nn::RouterImpl* router : nn::routers_of(module_)) router->take_sums();
}

void AttachedModule::collect(Micro micro, const std::function<void()>& body) {
  gradients().collect(micro, body);
}

std::vector<nn::WeightJob> AttachedModule::defer(nn::WeightQueue& queue,
                                                 const std::function<void()>& body) {
  return gradients().defer(queue, body);
}

std::vector<Range> AttachedModule::micro_batches(const BatchRows& rows) const {
  const int64_t count = std::max<int64_t>(1, (rows.largest + rows.micro - 1) / rows.micro);
  std::vector<Range> micros;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = std::min(rows.mine, i * rows.micro);
    micros.push_back({begin, std::min(rows.mine, begin + rows.micro) - begin});
  }
  return micros;
}

nn::ModelImpl& AttachedModule::model() const {
  auto* model = dynamic_cast<nn::ModelImpl*>(&module_);
  core::check(model != nullptr,
              "run and evaluate need an nn::Model, which has a loss of its own; with another "
              "module, compute the loss and call backward(loss)");
  return *model;
}

nn::Loss AttachedModule::loss_of(const nn::MicroBatch& micro) const {
  const nn::Flow& in = micro.inputs;
  return model().loss({as_input(in.x(), mesh_.device(), precision_), in.where},
                      micro.targets.to(mesh_.device()));
}

void AttachedModule::run(const std::vector<nn::MicroBatch>& micros) {
  for (std::size_t i = 0; i < micros.size(); ++i) {
    nn::Loss loss;
    try {
      loss = loss_of(micros[i]);
    } catch (const CommError&) {  // the world has failed
      throw;
    } catch (...) {  // the model threw: forget the step, so that training can go on
      discard();
      throw;
    }
    const auto& where = micros[i].inputs.where;
    backward(loss, i + 1 < micros.size() ? Micro::More : Micro::Last,
             where != nullptr ? where->loss_scale : at::Tensor());
  }
}

LossTotals AttachedModule::evaluate(const std::vector<nn::MicroBatch>& micros) {
  const at::NoGradGuard guard;
  LossTotals totals;
  for (const nn::MicroBatch& one : micros) totals.add(loss_of(one));
  end_forward();  // no backward follows that would release what is gathered
  return reports_loss(mesh_.coord()) ? totals : LossTotals{};
}

Totals AttachedModule::finish(const Finish& what) {
  start_finish();
  check_step();
  if (step_end_ == nullptr) {
    std::vector<std::string> names;
    for (const nn::Parameter& one : parameters()) names.push_back(one.name);
    step_end_ = std::make_unique<StepEnd>(mesh_, reducer_, std::vector<Gradients*>{&gradients()},
                                          shards(), std::move(names));
  }
  const Totals totals = step_end_->finish(std::exchange(loss_, {}), what);
  for (const auto& one : nn::batch_statistics_of(module_)) one->end_mini_batch();
  end_finish();
  return totals;
}

void AttachedModule::end_finish() {
  nn::end_step_of_routers(module_, mesh_.world());
  broadcast_buffers(module_, mesh_.world());
}

void AttachedModule::check_same() const {
  check_same_values(shared(), buffers(), mesh_.world());
}

}  // namespace trireme::parallel
