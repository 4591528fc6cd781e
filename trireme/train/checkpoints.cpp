#include "trireme/train/checkpoints.h"

#include <exception>
#include <set>

#include "trireme/checkpoint/resume.h"
#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/format/folder.h"
#include "trireme/train/model_state.h"
#include "trireme/train/reducer_state.h"

namespace trireme::train {

namespace {

/// The parameters that the attached model keeps here: an optimizer of torch may update these.
std::vector<optim::Slot> slots_of(const parallel::Attached& attached) {
  std::vector<optim::Slot> slots;
  for (const parallel::ParameterShard& one : attached.shards())
    slots.push_back({one.name, one.master});
  return slots;
}

/// The names of the tensors of all ranks.
std::set<std::string> names_of(const checkpoint::State& state, const comm::Communicator& world) {
  core::Json mine = core::Json::array();
  for (const checkpoint::Item& item : state.items) mine.push_back(item.piece.name);
  std::set<std::string> all;
  for (const std::string& text : comm::all_gather_texts(world, mine.dump()))
    for (const core::Json& name : core::parse_json(text, "the names of a rank's tensors"))
      all.insert(name.get<std::string>());
  return all;
}

}  // namespace

Checkpoints::Checkpoints(std::string folder, parallel::Attached& attached,
                         torch::optim::Optimizer& optimizer, CheckpointsOptions options)
    : Checkpoints(std::move(folder), attached, nullptr,
                  optim::resumable(optimizer, slots_of(attached)), options) {}

Checkpoints::Checkpoints(std::string folder, parallel::Attached& attached,
                         optim::Resumable& optimizer, CheckpointsOptions options)
    : Checkpoints(std::move(folder), attached, &optimizer, nullptr, options) {}

Checkpoints::Checkpoints(std::string folder, parallel::Attached& attached, optim::Resumable* given,
                         std::unique_ptr<optim::Resumable> own, CheckpointsOptions options)
    : folder_(std::move(folder)),
      attached_(attached),
      own_(std::move(own)),
      optimizer_(own_ ? *own_ : *given),
      saver_(folder_, attached.mesh(), options.keep) {
  const comm::Communicator& world = attached.mesh().world();
  std::string problem;
  if (world.rank() == 0) {
    try {
      lock_.emplace(folder_);
      format::remove_leftovers(folder_);
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  problem = comm::broadcast_text(world, problem, 0);
  if (!problem.empty()) throw ConfigError(problem);
}

Checkpoints::~Checkpoints() {
  if (std::uncaught_exceptions() == 0) saver_.wait();  // a failure was reported in a warning
}

int64_t Checkpoints::resume() {
  const comm::Communicator& world = attached_.mesh().world();
  const checkpoint::State state = state_of(attached_, optimizer_);
  const std::set<std::string> wanted = names_of(state, world);
  auto saved = checkpoint::load_newest(folder_, state, world, [&](const format::Checkpoint& one) {
    check_same_optimizer(optimizer_, one.index().extra);
    for (const auto& [name, tensor] : one.index().tensors)
      if (!wanted.contains(name) && !name.starts_with("reducer/") &&
          !name.starts_with(kPastWeights))
        throw ConfigError(fmt::format(
            "{} holds '{}', which this model or its optimizer does not have; use another "
            "folder for another model",
            one.folder(), name));
  });
  if (!saved) return 0;
  const core::Json& extra = saved->index().extra;
  restore(attached_, optimizer_, extra);
  restore_reducer(attached_, *saved);
  extra_ = extra.value("own", core::Json::object());
  return saved->index().step;
}

void Checkpoints::save(int64_t step, core::Json extra) {
  checkpoint::State state = state_of(attached_, optimizer_);
  state.extra["own"] = std::move(extra);
  saver_.save(step, state);
}

void Checkpoints::wait() {
  // Rank 0 puts the parts together, so it knows the result.
  const auto own = saver_.wait();
  const std::string problem = comm::broadcast_text(attached_.mesh().world(), own.value_or(""), 0);
  if (!problem.empty()) throw Error("the last checkpoint could not be written: " + problem);
}

}  // namespace trireme::train
