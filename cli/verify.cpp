#include "trireme/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/config_text.h"
#include "cli/exit_codes.h"
#include "cli/rank_commands.h"
#include "models/registry.h"
#include "trireme/config/mesh.h"
#include "trireme/core/error.h"
#include "trireme/format/file.h"
#include "trireme/train/datasets.h"
#include "trireme/train/world.h"
#include "trireme/verify/identities.h"

namespace trireme::cli {

int verify(const std::vector<std::string>& args) {
  const verify::Options options{
      .steps = std::stoll(args.at(0)),
      .plant = args.at(2).empty() ? verify::Mistake::None : verify::mistake_of(args.at(2)),
      .dtype = verify::dtype_of(args.at(3))};
  const std::string& json = args.at(1);
  auto config = load_config(args.at(4), {args.begin() + 5, args.end()});
  refuse_early(config, train::num_ranks(config));
  if (options.plant == verify::Mistake::Dropout && config.model.dropout == 0)
    config.model.dropout = 0.1;
  return train::with_ranks(config, [&](const comm::Communicator& world) {
    verify::TrainingSetup setup{
        .config = config,
        .model = [&](const Mesh& mesh) { return models::make_model(config, mesh); },
        .data = train::make_dataset(config)};
    const Degrees degrees = config::degrees_of(config, world.size());
    const std::string unequal = verify::why_not_equal(config);
    const auto identities = verify::prove_identities(setup, world, degrees, options.steps);
    setup.config = verify::comparable(config);
    const verify::Report report = verify::verify(setup, world, degrees, options);
    if (world.rank() == 0) {
      fmt::print("{}", report.text());
      if (!unequal.empty())
        fmt::print(
            "this is the mesh in lockstep. What was asked for is not meant to equal one rank: {}\n"
            "{}{}",
            unequal, identities.empty() ? "" : "what must hold of it, in float64:\n",
            verify::text_of(identities));
      std::fflush(stdout);
      if (!json.empty()) format::write_file(json, report.json().dump(1) + "\n");
    }
    world.barrier();  // no rank exits before the report is printed
    if (options.plant != verify::Mistake::None && report.same())
      throw ConfigError(fmt::format(
          "--plant {} had no effect here (a rank without samples, a learning rate of 0?)",
          args.at(2)));
    const bool all_hold = std::ranges::all_of(identities, &verify::Identity::holds);
    return report.same() && all_hold ? 0 : kDifferent;
  });
}

}  // namespace trireme::cli
