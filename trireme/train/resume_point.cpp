#include "trireme/train/resume_point.h"

#include <fmt/format.h>

#include <exception>
#include <functional>

#include "trireme/comm/texts.h"
#include "trireme/config/load.h"
#include "trireme/config/text.h"
#include "trireme/config/validate.h"
#include "trireme/core/error.h"
#include "trireme/format/folder.h"
#include "trireme/train/datasets.h"
#include "trireme/train/run_files.h"

namespace trireme::train {

namespace {

using ResumeFrom = config::Resume::From;

/// What rank 0 finds out with `look`; `none` if that fails: resuming will say what is wrong.
std::string seen_by_first(const comm::Communicator& world, const std::string& none,
                          const std::function<std::string()>& look) {
  std::string text = none;
  if (world.rank() == 0) {
    try {
      text = look();
    } catch (const std::exception&) {
    }
  }
  return comm::broadcast_text(world, text, 0);
}

}  // namespace

int64_t step_to_resume(const config::Config& config, const comm::Communicator& world) {
  return std::stoll(seen_by_first(world, "0", [&] {
    const auto& [from, folder] = config.checkpoint.resume;
    const auto there = format::list(checkpoints_of(config));
    if (from == ResumeFrom::Folder) return std::to_string(format::Checkpoint(folder).index().step);
    return std::to_string(from == ResumeFrom::Newest && !there.empty() ? there.back() : 0);
  }));
}

parallel::StageSizes cut_to_resume(const config::Config& config, const comm::Communicator& world) {
  const std::string text = seen_by_first(world, "[]", [&]() -> std::string {
    const auto& [from, folder] = config.checkpoint.resume;
    const bool newest = from == ResumeFrom::Newest;
    const auto there = format::list(checkpoints_of(config));
    if (from != ResumeFrom::Folder && (!newest || there.empty())) return "[]";
    const format::Checkpoint saved(
        newest ? checkpoints_of(config) + "/" + format::step_name(there.back()) : folder);
    return saved.index().extra.value("pipeline_cut", core::Json::array()).dump();
  });
  return core::parse_json(text, "the cut").get<parallel::StageSizes>();
}

void check_fits(const format::Checkpoint& saved, const config::Config& config,
                const core::Json& data) {
  const core::Json& extra = saved.index().extra;
  if (!extra.contains("optimizer"))
    throw ConfigError(fmt::format(
        "cannot continue {}: it holds weights only; start a new run from them by model.from=\"{}\"",
        saved.folder(), saved.folder()));
  const auto before = config::parse(extra.value("config", ""), saved.folder());
  auto difference = config::first_difference(before, config);
  if (!difference && !config.data.allow_change)
    difference = extra.contains("data") ? data_difference(extra.at("data"), data)
                                        : config::data_difference(before, config);
  if (difference)
    throw ConfigError(fmt::format(
        "cannot continue {}: {}; set it back or use another run.dir",
        config.checkpoint.resume.from == ResumeFrom::Newest ? config.run.dir : saved.folder(),
        *difference));
}

void refuse_newer(const config::Config& config, int64_t step) {
  const auto there = format::list(checkpoints_of(config));
  if (!there.empty() && there.back() > step)
    throw ConfigError(fmt::format(
        "checkpoint.resume = \"{}\": {} holds step {} already; remove it, or choose another "
        "run.dir",
        to_string(config.checkpoint.resume), checkpoints_of(config), there.back()));
}

}  // namespace trireme::train
