#include "trireme/verify/verify.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/data/loader.h"
#include "trireme/train/world.h"
#include "trireme/verify/recorder.h"
#include "trireme/verify/report.h"

namespace trireme::verify {

namespace {

config::Config in_float64(config::Config config) {
  config.precision.compute = config.precision.reduce = "float64";
  return config;
}

/// One of the two trainings that are compared.
class Side {
 public:
  Side(const Subject& subject, const config::Config& config, const Mesh& mesh, Mistake mistake,
       int64_t steps)
      : subject_(subject),
        mesh_(mesh),
        order_(static_cast<uint64_t>(config.run.seed), subject.data->size(), config.batch.global),
        trainer_(config, mesh_, train::build(subject.model, mesh_), steps),
        plant_(mistake, trainer_, mesh_),
        recorder_(trainer_, mesh_) {
    trainer_.on_gradients([this](int64_t, double weight) {
      plant_.touch_gradients();
      recorder_.note_gradients(weight);
    });
  }

  std::vector<Note> step(int64_t step) {
    const comm::Communicator replicas = mesh_.samples();
    const int64_t number = step - 1;
    data::Batch batch =
        data::Loader::read(*subject_.data, order_, plant_.block(replicas.rank(), replicas.size()),
                           replicas.size(), plant_.batch_number(number, order_));
    plant_.touch(batch);
    const auto whole = static_cast<int64_t>(order_.batch(number).size());
    recorder_.begin(batch, even_part(whole, replicas.size(), replicas.rank()).begin,
                    trainer_.num_micros(batch));
    const auto result = trainer_.step(step, batch);
    auto notes = recorder_.end(result);
    plant_.touch_weights(step);
    return notes;
  }

  const Mesh& mesh() const { return mesh_; }
  const Recorder& recorder() const { return recorder_; }

 private:
  const Subject& subject_;
  Mesh mesh_;
  data::Order order_;
  train::Trainer trainer_;
  Plant plant_;
  Recorder recorder_;
};

/// Layers whose outputs one side could not note, or only one of the two has.
std::vector<std::string> skipped(std::set<std::string> names, const std::vector<Note>& alone,
                                 const std::vector<std::vector<Note>>& ranks) {
  const auto outputs = [](const std::vector<Note>& notes, std::set<std::string>& to) {
    for (const Note& note : notes)
      if (note.stage == Stage::Output) to.insert(note.name);
  };
  std::set<std::string> one, mesh;
  outputs(alone, one);
  for (const auto& notes : ranks) outputs(notes, mesh);
  std::set_symmetric_difference(one.begin(), one.end(), mesh.begin(), mesh.end(),
                                std::inserter(names, names.end()));
  return {names.begin(), names.end()};
}

/// The bias of the layer whose output this is, as it is in this step.
at::Tensor bias_of(const std::string& layer, const std::vector<Compared>& step) {
  for (const Compared& one : step)
    if (one.stage == Stage::Weight && one.name == layer + ".bias") return one.alone;
  return {};
}

at::Tensor weight_of(const std::string& name, const std::vector<Note>& notes) {
  for (const Note& note : notes)
    if (note.stage == Stage::Weight && note.name == name) return note.value;
  return {};
}

}  // namespace

Report verify(const Subject& subject, const comm::Communicator& world, const Degrees& degrees,
              const Options& options) {
  const config::Config config = in_float64(subject.config);
  core::check(options.steps >= 1, "verify: {} steps prove nothing", options.steps);
  const c10::Device device = train::pick_device(config, world);
  Side cut(subject, config, Mesh(world, degrees, device), options.plant, options.steps);
  std::optional<Side> alone;
  if (world.rank() == 0)
    alone.emplace(subject, config, mesh_of_one(device), Mistake::None, options.steps);

  Report report{.degrees = degrees,
                .steps = 0,
                .tolerance = options.tolerance,
                .rows = {},
                .skipped = {},
                .first = {}};
  std::vector<Note> before;  // one rank's notes of the step before
  for (int64_t step = 1; step <= options.steps + 1 && report.same(); ++step) {
    // After the last step only the weights are left to compare.
    const bool ends = step > options.steps;
    const auto ranks = gather(ends ? cut.recorder().weights() : cut.step(step), world);
    if (alone) {
      auto notes = ends ? alone->recorder().weights() : alone->step(step);
      const auto compared = compare(notes, ranks, degrees);
      add_rows(report, compared);
      const auto found = std::find_if(compared.begin(), compared.end(), [&](const Compared& one) {
        return !(one.difference <= options.tolerance);
      });
      if (found != compared.end()) {
        const Context context{.degrees = degrees,
                              .tolerance = options.tolerance,
                              .before = weight_of(found->name, before),
                              .bias = bias_of(found->name, compared)};
        report.first = Finding{step,
                               found->stage,
                               found->name,
                               found->difference,
                               found->worst_rank,
                               diagnose(*found, context)};
      }
      report.steps = std::min(step, options.steps);
      if (!ends) report.skipped = skipped(alone->recorder().skipped(), notes, ranks);
      before = std::move(notes);
    }
    report = report_of(comm::broadcast_text(world, to_text(report), 0));
  }
  return report;
}

}  // namespace trireme::verify
