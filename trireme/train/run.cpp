#include "trireme/train/run.h"

#include "trireme/config/validate.h"
#include "trireme/train/resume_point.h"
#include "trireme/train/run_phase.h"

namespace trireme::train {

int run(const config::Config& config, const comm::Communicator& world, const ModelFactory& model,
        const StopSignals& signals) {
  config::refuse_unbuilt(config);
  const bool lockstep_first =
      config.sync.after > 0 && step_to_resume(config, world) < config.sync.after;
  if (!lockstep_first) return *run_phase(config, world, model, signals, Phase::Main);
  if (const auto code = run_phase(config, world, model, signals, Phase::Lockstep)) return *code;
  // The second phase begins at the checkpoint where the first has ended.
  config::Config rest = config;
  rest.checkpoint.resume = {};
  return *run_phase(rest, world, model, signals, Phase::Main);
}

}  // namespace trireme::train
